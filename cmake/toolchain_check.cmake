# g++ 12.2 silently miscompiles coroutines (docs/design/0001-toolchain.md), so only clang builds this.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
  message(FATAL_ERROR
    "Penstock builds with clang 19 or later, found ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}.\n"
    "Use `make`, or a preset (`cmake --preset release`), which select it.")
endif()
