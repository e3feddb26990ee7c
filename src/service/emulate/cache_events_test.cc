// Against messages typed from facts/engines.md 4.5; names of blocks are what they happen to be.
#include "service/emulate/cache_events.h"

#include <fmt/format.h>

#include <doctest/doctest.h>

namespace penstock::emulate {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string hex(std::uint64_t number) {
  return fmt::format("{:016x}", number);
}

std::string text(std::string_view name) {
  return fmt::format("{:02x}", 0xa0 + name.size()) + hex(name);
}

// The token ids 1 to 16, or 17 to 32.
std::string ids(int first) {
  std::string out = "dd00000010";
  for (int id = first; id < first + 16; ++id)
    out += fmt::format("{:02x}", id);
  return out;
}

std::vector<TokenId> tokens(std::uint32_t count) {
  std::vector<TokenId> out(count);
  for (std::uint32_t i = 0; i < count; ++i)
    out[i] = i + 1;
  return out;
}

// 1.5 as a double, in an array of three.
constexpr std::string_view kHead = "93cb3ff8000000000000";

}  // namespace

TEST_CASE("cache events: by position, names as numbers, as vLLM sent them first") {
  BlockCache cache(2);
  const auto prompt = tokens(40);
  const CacheEvents how{1.5, 1, false, ""};
  const auto one = cache.use(std::span(prompt).first(20), 7);
  REQUIRE(one.names.size() == 1);
  CHECK(hex(*cache_events(how, prompt, one)) == std::string(kHead) + "9199" + text("BlockStored") +
                                                    "91cf" + hex(one.names[0]) + "c0" + ids(1) +
                                                    "10c0" + text("GPU") + "c0c001");
  // One block more follows the first.
  const auto two = cache.use(prompt, 7);
  CHECK(two.held == 1);
  CHECK(hex(*cache_events(how, prompt, two)) ==
        std::string(kHead) + "9199" + text("BlockStored") + "91cf" + hex(two.names[1]) + "cf" +
            hex(one.names[0]) + ids(17) + "10c0" + text("GPU") + "c0c001");
  CHECK_FALSE(cache_events(how, prompt, cache.use(prompt, 7)).has_value());
  // Another prompt, by its salt: the older one's last block goes first.
  const auto other = cache.use(std::span(prompt).first(16), 8);
  CHECK(other.held == 0);
  CHECK(other.names[0] != one.names[0]);
  CHECK(hex(*cache_events({1.5, 0, false, "s"}, prompt, other)) ==
        std::string(kHead) + "9299" + text("BlockStored") + "91cf" + hex(other.names[0]) + "c0" +
            ids(1) + "10c0" + text("GPU") + "c09191a173" + "93" + text("BlockRemoved") + "91cf" +
            hex(two.names[1]) + text("GPU") + "00");
}

TEST_CASE("cache events: as maps, names as bytes, as vLLM and SGLang send them now") {
  BlockCache cache(1);
  const auto prompt = tokens(16);
  const auto used = cache.use(prompt, 7);
  std::string name;
  for (int i = 0; i < 4; ++i)
    name += hex(used.names[0]);
  CHECK(hex(*cache_events({1.5, 0, true, ""}, prompt, used)) ==
        std::string(kHead) + "9189" + text("type") + text("BlockStored") + text("block_hashes") +
            "91c600000020" + name + text("parent_block_hash") + "c0" + text("token_ids") + ids(1) +
            text("block_size") + "10" + text("lora_id") + "c0" + text("medium") + text("GPU") +
            text("lora_name") + "c0" + text("extra_keys") + "c0" + "00");
}

}  // namespace penstock::emulate
