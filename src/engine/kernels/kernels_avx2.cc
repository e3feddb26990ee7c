// The kernels for one instruction set. Compiled with AVX2 and FMA (see CMakeLists.txt); 3 rows x 4
// registers of accumulators.
#define PENSTOCK_TILE_ROWS 3
#define PENSTOCK_INSTRUCTION_SET InstructionSet::kAvx2
#include "engine/kernels/kernel_text.h"

namespace penstock::engine {
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = kTable;
}  // namespace penstock::engine
