#include "base/rng.h"

#include "base/check.h"

namespace penstock {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

double uniform01(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

double sampling_uniform(std::uint64_t seed, std::uint32_t choice, std::uint32_t position,
                        std::uint32_t draw) {
  const auto block = philox(seed, {position, choice, draw, 0});
  return uniform01(block[0], block[1]);
}

std::uint64_t Rng::next_u64() {
  const std::uint64_t n = counter_++;
  const auto block =
      philox(seed_, {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0, 1});
  return static_cast<std::uint64_t>(block[0]) << 32 | block[1];
}

std::uint64_t Rng::below(std::uint64_t bound) {
  ENSURE(bound > 0);
  __extension__ using Wide = unsigned __int128;
  const auto wide = static_cast<Wide>(next_u64()) * bound;
  return static_cast<std::uint64_t>(wide >> 64);
}

double Rng::uniform() {
  const std::uint64_t bits = next_u64();
  return uniform01(static_cast<std::uint32_t>(bits >> 32), static_cast<std::uint32_t>(bits));
}

}  // namespace penstock
