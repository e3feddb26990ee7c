// SHA-256 of bytes, for names that must be the same everywhere: content hashes, stored keys.
//
// Without a secret: whoever knows the bytes knows the digest. For names that must not be forged
// there is base/hash.h. Errors: none. Concurrency: pure. Source: FIPS 180-4, through libcrypto.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace penstock {

std::array<std::uint8_t, 32> sha256(std::string_view bytes);

}  // namespace penstock
