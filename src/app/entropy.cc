#include "app/entropy.h"

#include <random>

namespace penstock {

std::uint64_t draw_u64() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

std::array<std::uint8_t, 32> draw_secret() {
  std::array<std::uint8_t, 32> secret{};
  for (std::size_t i = 0; i < secret.size(); i += 8) {
    const std::uint64_t word = draw_u64();
    for (std::size_t b = 0; b < 8; ++b) {
      secret[i + b] = static_cast<std::uint8_t>(word >> (8 * b));
    }
  }
  return secret;
}

}  // namespace penstock
