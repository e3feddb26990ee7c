// Run-time choice of the kernels: cpuid through the compiler's own tables, which also ask the
// operating system whether it saves the wide registers.
#include "engine/kernels/instruction_set.h"

#include "base/check.h"
#include "engine/kernels/kernels.h"

namespace penstock::engine {

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

std::string_view to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool supported(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return true;
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case InstructionSet::kAvx512:
      return supported(InstructionSet::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
  return false;
}

InstructionSet best_instruction_set() {
  if (supported(InstructionSet::kAvx512)) return InstructionSet::kAvx512;
  return supported(InstructionSet::kAvx2) ? InstructionSet::kAvx2 : InstructionSet::kPortable;
}

const Kernels& kernels(InstructionSet set) {
  ENSURE(supported(set));
  switch (set) {
    case InstructionSet::kPortable:
      return kPortableKernels;
    case InstructionSet::kAvx2:
      return kAvx2Kernels;
    case InstructionSet::kAvx512:
      return kAvx512Kernels;
  }
  return kPortableKernels;
}

}  // namespace penstock::engine
