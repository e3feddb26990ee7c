// Randomness from the system, for what must not be guessed or repeated: epochs, secrets, seeds.
// Errors: none; std::random_device ends the process where there is no source. Concurrency: any
// thread.
#pragma once

#include <array>
#include <cstdint>

namespace penstock {

std::uint64_t draw_u64();
std::array<std::uint8_t, 32> draw_secret();

}  // namespace penstock
