#include "io/responses/text_seal.h"

#include <sodium.h>

#include <vector>

namespace penstock {
namespace {

constexpr std::string_view kUse = "penstock text seal 1";
constexpr std::size_t kNonceBytes = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr std::size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;
constexpr int kBase64 = sodium_base64_VARIANT_URLSAFE_NO_PADDING;

const unsigned char* bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Framed, so that no two pairs give the same bytes: purposes are ours and hold no zero byte.
std::string bound_to(std::string_view purpose, std::string_view owner) {
  return std::string(purpose) + '\0' + std::string(owner);
}

}  // namespace

Result<TextSeal> TextSeal::make(std::span<const std::uint8_t, 32> secret) {
  if (sodium_init() < 0) {
    return fail(ErrorCode::kInternal, "libsodium could not be initialised; is there no entropy?");
  }
  TextSeal seal;
  crypto_generichash(seal.key_.data(), seal.key_.size(), bytes(kUse), kUse.size(), secret.data(),
                     secret.size());
  return seal;
}

std::string TextSeal::seal(std::string_view purpose, std::string_view owner,
                           std::string_view text) const {
  const std::string bound = bound_to(purpose, owner);
  std::vector<unsigned char> box(kNonceBytes + text.size() + kTagBytes);
  randombytes_buf(box.data(), kNonceBytes);
  crypto_aead_xchacha20poly1305_ietf_encrypt(box.data() + kNonceBytes, nullptr, bytes(text),
                                             text.size(), bytes(bound), bound.size(), nullptr,
                                             box.data(), key_.data());
  std::string out(sodium_base64_encoded_len(box.size(), kBase64), '\0');
  sodium_bin2base64(out.data(), out.size(), box.data(), box.size(), kBase64);
  out.pop_back();  // the terminating zero
  return out;
}

std::optional<std::string> TextSeal::open(std::string_view purpose, std::string_view owner,
                                          std::string_view sealed) const {
  std::vector<unsigned char> box(sealed.size() / 4 * 3 + 3);
  std::size_t size = 0;
  const char* end = nullptr;
  if (sodium_base642bin(box.data(), box.size(), sealed.data(), sealed.size(), nullptr, &size, &end,
                        kBase64) != 0 ||
      end != sealed.data() + sealed.size() || size < kNonceBytes + kTagBytes) {
    return std::nullopt;
  }
  const std::string bound = bound_to(purpose, owner);
  std::string text(size - kNonceBytes - kTagBytes, '\0');
  if (crypto_aead_xchacha20poly1305_ietf_decrypt(
          reinterpret_cast<unsigned char*>(text.data()), nullptr, nullptr, box.data() + kNonceBytes,
          size - kNonceBytes, bytes(bound), bound.size(), box.data(), key_.data()) != 0) {
    return std::nullopt;
  }
  return text;
}

}  // namespace penstock
