// How the allocator of a server's process keeps memory.
#pragma once

namespace penstock {

// Lets the allocator keep what it was given, up to some megabytes a thread: requests of a hundred
// kilobytes come and go, and the kernel takes longer to give back their pages than we to fill them.
// Call it before threads start. Other allocators (the sanitizers') are left as they are.
void keep_freed_memory();

}  // namespace penstock
