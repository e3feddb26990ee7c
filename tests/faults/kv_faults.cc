// kv_faults: the KV cache's daemon killed, stopped, starved and damaged, with engines at work.
//
//   kv_faults kills --rounds N      SIGKILL at the nth effect and at random, then a restart
//   kv_faults scenes                stopped daemon, dead and stopped engines, lost and full disk
//   kv_faults flips --flips N       one flipped bit in a segment or in the arena
//
// Each takes --seed S (drawn and printed otherwise) and --margin-ms M. What is injected and what is
// checked is in docs/faults.md. Data: the folder it works in is left behind when it fails.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "io/files/files.h"
#include "tests/faults/driver.h"
#include "tests/faults/fault_daemon.h"
#include "tests/faults/suites.h"

namespace penstock::faults {
namespace {

std::string repeat;  // the command that runs the same again
std::string folder_in_use;

}  // namespace

void fail_suite(const std::string& what) {
  fmt::print(stderr, "FAILED: {}\n  again: {}\n  left: {}\n", what, repeat, folder_in_use);
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace penstock::faults

int main(int argc, char** argv) {
  using namespace penstock;          // NOLINT
  using namespace penstock::faults;  // NOLINT
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "daemon") return run_daemon({words.begin() + 1, words.end()});
  if (!words.empty() && words[0] == "holder") return run_holder({words.begin() + 1, words.end()});
  SuiteOptions options;
  options.seed = std::random_device()();
  bool known = words.size() % 2 == 1;
  for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
    const std::uint64_t value = std::strtoull(words[i + 1].c_str(), nullptr, 10);
    if (words[i] == "--seed") {
      options.seed = value;
    } else if (words[i] == "--rounds" || words[i] == "--flips") {
      options.rounds = static_cast<std::uint32_t>(value);
    } else if (words[i] == "--margin-ms") {
      options.margin = std::chrono::milliseconds(value);
    } else {
      known = false;
    }
  }
  const std::string suite = words.empty() ? "" : words[0];
  known = known && (suite == "kills" || suite == "scenes" || suite == "flips");
  if (!known) {
    fmt::print(stderr,
               "usage: kv_faults kills|scenes|flips [--rounds N] [--seed S] "
               "[--margin-ms M]\n");
    return 2;
  }
  auto folder = TemporaryDirectory::make("penstock-faults");
  if (!folder) {
    fmt::print(stderr, "{}\n", folder.error().message);
    return 1;
  }
  folder_in_use = options.folder = folder->path();
  repeat = fmt::format("kv_faults {} --rounds {} --seed {} --margin-ms {}", suite, options.rounds,
                       options.seed, options.margin.count());
  const Status secret =
      write_file_atomically(options.folder + "/secret", std::string(64, 'a') + "\n", 0600);
  require(secret.has_value(), "no secret");
  fmt::print("{}\n", repeat);
  const SuiteResult result = suite == "kills"    ? run_kills(options)
                             : suite == "scenes" ? run_scenes(options)
                                                 : run_flips(options);
  fmt::print("test cases: {} | {} passed | 0 failed | {} skipped\n", result.passed + result.skipped,
             result.passed, result.skipped);
  return 0;
}
