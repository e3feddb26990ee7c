// The instruction sets the kernels are compiled for, and what this CPU can run.
//
// All sets compute the same bits (docs/design/0003-one-arithmetic.md); the choice is only about
// speed. Concurrency: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::engine {

enum class InstructionSet : std::uint8_t {
  kPortable,  // what every x86-64 has; the fused multiply-add comes from the C library
  kAvx2,      // AVX2 + FMA
  kAvx512,    // AVX-512 F, BW, DQ, VL
};

// "portable", "avx2", "avx512".
std::string_view to_string(InstructionSet set);
// True when this CPU and its operating system can run the set.
bool supported(InstructionSet set);
// The fastest set that this CPU can run.
InstructionSet best_instruction_set();

}  // namespace penstock::engine
