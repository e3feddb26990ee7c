// libFuzzer entry: what another host sends. The first byte says which body the rest is.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "io/kv/peer_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::kv::peer;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      if (bytes.size() >= kHeaderBytes) (void)decode_header(bytes.substr(0, kHeaderBytes));
      break;
    case 1:
      if (const auto hello = decode_hello(bytes)) ENSURE(hello_body(*hello) == bytes);
      break;
    case 2:
      if (const auto challenge = decode_challenge(bytes))
        ENSURE(challenge_body(*challenge) == bytes);
      break;
    case 3:
      if (const auto holdings = decode_holdings(bytes)) ENSURE(holdings_body(*holdings) == bytes);
      break;
    case 4:
      if (const auto fetch = decode_read(bytes, 1)) ENSURE(read_body(*fetch) == bytes);
      break;
    case 5:
      if (const auto block = decode_block(bytes))
        ENSURE(block_body(block->reason, block->info) == bytes);
      break;
    case 6:
      if (const auto name = decode_damaged(bytes)) ENSURE(damaged_body(*name) == bytes);
      break;
    default:
      (void)decode_proof(bytes);
  }
  return 0;
}
