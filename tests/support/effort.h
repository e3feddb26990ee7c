// How much a test tries.
#pragma once

namespace penstock {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PENSTOCK_SANITIZED true
#endif
#endif
#ifndef PENSTOCK_SANITIZED
#define PENSTOCK_SANITIZED false
#endif

inline constexpr bool kSanitized = PENSTOCK_SANITIZED;

// How many of `all` random rounds to run: all, or a fifth where a sanitizer makes each take ten
// times as long. What the rounds find is found by the plain build; the sanitizer looks at the code.
constexpr int rounds(int all) {
  return kSanitized ? (all + 4) / 5 : all;
}

}  // namespace penstock
