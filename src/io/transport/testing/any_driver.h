// The drivers of this build, for tests that hold for each. Concurrency: values.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "io/files/files.h"
#include "io/transport/transport_options.h"

namespace penstock::transport {

// All, or the one that the environment asks for.
inline std::vector<std::string> all_drivers() {
  if (const char* one = std::getenv("PENSTOCK_TEST_DRIVERS")) return {one};
  std::vector<std::string> drivers = {"shm", "tcp"};
  if (has_ucx()) drivers.push_back("ucx");
  return drivers;
}

// Addresses to listen at: no two tests share one.
class Addresses {
 public:
  std::string of(const std::string& driver) {
    if (driver != "shm") return driver + ":127.0.0.1:0";
    return "shm:" + folder_.path() + "/" + std::to_string(++count_);
  }

 private:
  TemporaryDirectory folder_ = *TemporaryDirectory::make("penstock-transport");
  int count_ = 0;
};

}  // namespace penstock::transport
