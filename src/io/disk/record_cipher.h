// RecordCipher: encryption of records at rest, XChaCha20-Poly1305 through libsodium.
//
// A record's slice table and payload are encrypted in place as one message; the fixed header before
// them is authenticated. The nonce is 192 random bits for every record written, so it repeats with
// negligible probability for any number of records. Names (keyed hashes), sizes and depths stay
// readable: the index is rebuilt from them.
//
// Errors: open_key_file() says what is wrong with the file. Concurrency: one thread.
// Source: docs/protocol/kv-segments.md; libsodium's crypto_aead_xchacha20poly1305_ietf.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "core/kvcache/segment_format.h"

namespace penstock::disk {

class RecordCipher {
 public:
  using Key = std::array<std::uint8_t, 32>;
  // Precondition: initialise() succeeded.
  explicit RecordCipher(const Key& key);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  static Status initialise();
  // The file holds 64 hexadecimal digits; others than its owner must not be able to read it.
  static Result<Key> read_key_file(const std::string& path);

  std::uint64_t id() const { return id_; }  // names the key, never 0
  // Random bytes of the system.
  static std::array<std::uint8_t, 24> nonce();
  static std::uint64_t random_word();
  // `record` is header units and payload, the header written with encrypted = true and a nonce.
  void seal(const kvcache::RecordHeader& header, std::span<std::byte> record) const;
  // False: not what was sealed with this key.
  bool open(const kvcache::RecordHeader& header, std::span<std::byte> record) const;

 private:
  Key key_;
  std::uint64_t id_ = 0;
};

}  // namespace penstock::disk
