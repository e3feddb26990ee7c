// The kernels for one instruction set. No flags: SSE2, and fmaf from the C library (correctly
// rounded with or without hardware).
#define PENSTOCK_TILE_ROWS 2
#define PENSTOCK_INSTRUCTION_SET InstructionSet::kPortable
#include "engine/kernels/kernel_text.h"

namespace penstock::engine {
extern const Kernels kPortableKernels;
const Kernels kPortableKernels = kTable;
}  // namespace penstock::engine
