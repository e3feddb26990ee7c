#include "base/hash.h"

#include <openssl/evp.h>
#include <algorithm>

#include "base/check.h"
#include "base/xxh3.h"

namespace penstock {

struct KeyedHasher::State {
  EVP_MD* digest = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  std::array<std::uint8_t, 32> secret{};

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(digest);
  }
};

KeyedHasher::KeyedHasher(std::span<const std::uint8_t, 32> secret)
    : state_(std::make_unique<State>()) {
  ENSURE(state_->digest != nullptr && state_->context != nullptr);
  std::ranges::copy(secret, state_->secret.begin());
  begin();
}

KeyedHasher::~KeyedHasher() = default;
KeyedHasher::KeyedHasher(KeyedHasher&&) noexcept = default;
KeyedHasher& KeyedHasher::operator=(KeyedHasher&&) noexcept = default;

void KeyedHasher::begin() {
  ENSURE(EVP_DigestInit_ex2(state_->context, state_->digest, nullptr) == 1);
  add(state_->secret);
}

void KeyedHasher::add(std::span<const std::uint8_t> bytes) {
  ENSURE(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

void KeyedHasher::add_field(std::string_view bytes) {
  std::array<std::uint8_t, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::uint8_t>(bytes.size() >> (8 * i));
  }
  add(length);
  ENSURE(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

Hash128 KeyedHasher::finish() {
  std::array<std::uint8_t, EVP_MAX_MD_SIZE> full{};
  unsigned int length = 0;
  ENSURE(EVP_DigestFinal_ex(state_->context, full.data(), &length) == 1 && length == 32);
  Hash128 out;
  std::copy_n(full.begin(), out.bytes.size(), out.bytes.begin());
  return out;
}

Hash128 KeyedHasher::hash(std::string_view bytes) {
  begin();
  add_field(bytes);
  return finish();
}

std::uint64_t checksum64(std::span<const std::byte> bytes) {
  return xxh3().hash(bytes.data(), bytes.size());
}

std::uint64_t checksum64(std::string_view bytes) {
  return xxh3().hash(bytes.data(), bytes.size());
}

}  // namespace penstock
