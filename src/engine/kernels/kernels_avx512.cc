// The kernels for one instruction set. Compiled with AVX-512 F, BW, DQ, VL (see CMakeLists.txt); 14
// rows x 2 registers.
#define PENSTOCK_TILE_ROWS 14
#define PENSTOCK_INSTRUCTION_SET InstructionSet::kAvx512
#include "engine/kernels/kernel_text.h"

namespace penstock::engine {
extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = kTable;
}  // namespace penstock::engine
