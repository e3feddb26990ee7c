// ENSURE: a broken invariant of ours ends the process, in every build.
//
// Never ENSURE on what a client, a peer, a file or an engine can cause: that is a Result. The
// message names file, line and expression and goes to stderr before abort(). (Named ENSURE because
// test frameworks own the name CHECK.) Concurrency: callable from any thread.
#pragma once

#include <string_view>

namespace penstock {
[[noreturn]] void check_failed(const char* file, int line, std::string_view expression);
}  // namespace penstock

#define ENSURE(condition)                                       \
  do {                                                          \
    if (!(condition)) [[unlikely]]                              \
      ::penstock::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)
