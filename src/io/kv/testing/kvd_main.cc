// A KV daemon with host memory only, for tests of other processes: kvd_for_tests SOCKET.
// The secret is bytes 1, 2, ..., 32. Ends by a signal.
#include <cstdio>

#include "io/kv/test_daemon.h"

int main(int argc, char** argv) {
  using namespace penstock;  // NOLINT
  if (argc != 2) return 2;
  kv::KvServerOptions options;
  options.socket = argv[1];
  options.arena_bytes = std::uint64_t{64} << 20;
  options.daemon.epoch = static_cast<std::uint64_t>(::getpid());
  options.daemon.key_check = kvcache::KeyChain(kv::testing::test_secret()).key_check();
  options.daemon.classes = {{"default", std::chrono::hours(24)}};
  const auto server = kv::KvServer::start(options, nullptr);
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().message.c_str());
    return 1;
  }
  (*server)->run();
  return 0;
}
