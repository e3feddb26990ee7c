// TextSeal: text that a client keeps for us, readable and changeable by us only.
//
// XChaCha20-Poly1305 under a key derived from the deployment's secret, with a random nonce; purpose
// and owner are authenticated with it, so text sealed for one API key or one use opens for no
// other. Gateways with the same secret open each other's seals; a new secret makes old ones
// foreign.
//
// Units and shapes: base64url without padding of nonce (24 bytes), text, tag (16 bytes).
// Errors: open() gives nothing for whatever is not ours. Concurrency: immutable; any thread.
// Source: libsodium, crypto_aead_xchacha20poly1305_ietf.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

class TextSeal {
 public:
  static Result<TextSeal> make(std::span<const std::uint8_t, 32> secret);

  std::string seal(std::string_view purpose, std::string_view owner, std::string_view text) const;
  std::optional<std::string> open(std::string_view purpose, std::string_view owner,
                                  std::string_view sealed) const;

 private:
  std::array<std::uint8_t, 32> key_{};
};

}  // namespace penstock
