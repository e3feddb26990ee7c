// How this machine's operator reaches a running gateway: a file in the data folder.
//
// DATA_DIR/run/gateway.json holds the gateway's address and a token drawn at its start; only its
// owner can read it. Who has the token may ask under /admin (service/gateway/gateway.cc). The file
// goes with the gateway; one that was killed leaves it, and the next one replaces it.
//
// Errors: grant() as write_file_atomically; find_gateway() kUnavailable when no gateway has left a
// file there, kDataLoss when it is none. Concurrency: one thread; holds() any thread.
#pragma once

#include <string>
#include <string_view>

#include "app/api_client.h"
#include "app/options.h"
#include "base/result.h"

namespace penstock {

class OperatorAccess {
 public:
  OperatorAccess();
  ~OperatorAccess();  // removes the file if it is still ours
  OperatorAccess(const OperatorAccess&) = delete;
  OperatorAccess& operator=(const OperatorAccess&) = delete;

  // Writes the file, with the port that is listened on.
  Status grant(const Options& options, std::uint16_t port);
  // Whether it is our token; the time it takes does not say how much of it was right.
  bool holds(std::string_view token) const;

 private:
  std::string token_;
  std::string path_;
};

// The gateway that runs with this data folder.
Result<ApiTarget> find_gateway(const Options& options);

}  // namespace penstock
