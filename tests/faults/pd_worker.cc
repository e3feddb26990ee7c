// `penstock worker`, but with a transport that breaks to a plan (faulty_transport.h).
//
// usage: pd_worker FAULTS SEED, then the arguments of `penstock worker`
//
// Errors: as `penstock worker`.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/environment.h"
#include "tests/faults/faulty_transport.h"

namespace penstock::faults {
namespace {

Result<int> run(std::string plan, std::uint64_t seed, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "worker");
  TRY(const auto line, parse_command_line(std::move(arguments), read_environment()));
  return run_worker(line.options, [&](std::unique_ptr<Transport> inner) {
    return std::make_unique<FaultyTransport>(std::move(inner), TransportFaults(plan, seed));
  });
}

}  // namespace
}  // namespace penstock::faults

int main(int count, char** words) {
  using namespace penstock;
  if (count < 3) {
    fmt::print(stderr, "usage: pd_worker FAULTS SEED, then the arguments of `penstock worker`\n");
    return error_info(ErrorCode::kInvalidArgument).exit_code;
  }
  const auto done =
      faults::run(words[1], std::strtoull(words[2], nullptr, 10), {words + 3, words + count});
  if (done) return *done;
  fmt::print(stderr, "pd_worker: {}\n", to_string(done.error()));
  return error_info(done.error().code).exit_code;
}
