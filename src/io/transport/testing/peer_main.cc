// A process that owns a pool and serves it, for tests that stop and kill it:
// transport_peer_for_tests LISTEN BLOCKS BLOCK_BYTES
//
// Prints its address, answers each message with itself, and ends with its standard input.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "io/transport/testing/sample_pool.h"
#include "io/transport/transport_options.h"

int main(int count, char** words) {
  using namespace penstock;
  if (count < 4) return 64;
  const transport::SamplePool pool(static_cast<std::uint32_t>(std::atoi(words[2])),
                                   static_cast<std::size_t>(std::atoll(words[3])));
  transport::TransportOptions options;
  options.listen = words[1];
  const auto opened = transport::open_transport(std::move(options));
  if (!opened) {
    fmt::print(stderr, "{}\n", to_string(opened.error()));
    return 1;
  }
  Transport& transport = **opened;
  transport.publish(pool.published());
  TransportEvents events;
  events.readable = [](PeerId, std::uint32_t, std::uint32_t, std::uint64_t) { return true; };
  events.message = [&](PeerId peer, std::string_view text) { (void)transport.send(peer, text); };
  transport.set_events(std::move(events));
  const std::string address = transport.address() + "\n";
  (void)!::write(STDOUT_FILENO, address.data(), address.size());
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
