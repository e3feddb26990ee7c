// Names of KV blocks: a keyed hash chained over the blocks of a prompt.
//
//   root  = H(secret, 'R', every field that changes the bytes or says who may share them)
//   key_i = H(secret, 'B', counts, key_{i-1}, token ids of block i, media that begin in block i)
//
// H is SHA-256 over (32-byte deployment secret || message), cut to 128 bits (base/hash). Without
// the secret nobody can make a key, so a hit can't be forged. Each field is written with its tag,
// its length and then its bytes, in a fixed order: a LoRA named like a scope, or a name that
// holds a separator, can't give the key of other fields. Media lie at an offset inside the block
// where they begin; blocks after it depend on them through their parent.
//
// Invariants: equal fields, tokens and media give equal keys in every process, build and machine
// (golden values in the test; self_test() at start). A key depends on the whole chain before it.
// Only whole blocks have keys. Block size is in the root, so chains of different sizes never
// meet.
// Units and shapes: a block message is <= 320 bytes with the secret at 64 tokens without media:
// five SHA-256 rounds, about 0.23 us with SHA-NI. Token ids and offsets are little-endian.
// Errors: root() refuses a missing field (kInvalidArgument). Concurrency: one object per thread.
// Source: design.md section 6; docs/design/0005-kv-cache.md; facts/kvcache.md 5a, 6a.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "domain/kv.h"
#include "domain/tokens.h"

namespace penstock::kvcache {

inline constexpr std::uint32_t kBlockTokensMax = 4096;

// Everything that changes the bytes of KV, and the scope. See pkv_root_fields.
struct KvRootFields {
  std::string weights_digest;  // of the weights' bytes, not a name
  std::string engine_build;    // engine, version and kernel semantics
  std::string kv_format;       // dtype, quantisation, layout fingerprint
  std::string lora;            // id and version; empty: no adapter
  std::string scope;           // isolation scope: "tenant:...", "user:...", "deployment"
  std::uint32_t block_tokens = 64;
};

// An image or the like: where it starts in the prompt, and the hash of its content.
struct KvMedia {
  std::uint64_t token_offset = 0;
  std::array<std::uint8_t, 32> content_hash{};
  bool operator==(const KvMedia&) const = default;
};

// The media that begin in tokens [from, to); `media` ascends by offset.
std::span<const KvMedia> media_between(std::span<const KvMedia> media, std::uint64_t from,
                                       std::uint64_t to);

// Is told keys while the next ones are hashed, some blocks at a time: what will be looked up for
// them can be fetched from memory meanwhile. The last ones are not told.
using KeysTold = std::function<void(std::span<const BlockKey>)>;
inline constexpr std::size_t kKeysTold = 64;  // blocks at a time

class KeyChain {
 public:
  explicit KeyChain(std::span<const std::uint8_t, 32> secret) : hasher_(secret) {}

  // Fails when a field other than `lora` is empty (a forgotten scope would be shared by all) or the
  // block size is not in [1, kBlockTokensMax].
  Result<BlockKey> root(const KvRootFields& fields);

  // The key of one block: `tokens` are all its tokens, `media` those that begin in it, ascending;
  // `start` is the prompt offset of its first token.
  BlockKey next(const BlockKey& parent, std::span<const TokenId> tokens,
                std::span<const KvMedia> media = {}, std::uint64_t start = 0);

  // Keys of the whole blocks of a prompt; `media` ascends by offset.
  std::vector<BlockKey> chain(const BlockKey& root, std::uint32_t block_tokens,
                              std::span<const TokenId> tokens, std::span<const KvMedia> media = {},
                              const KeysTold& told = {});

  // Hash of a fixed text: two processes with different secrets find out at their hello.
  BlockKey key_check();

  // Names the tokens of a first block alone, whatever the root, so that explain can say that the
  // same text is stored in another scope or by another build. Keyed: tells nothing without the
  // secret.
  std::uint64_t content_tag(std::span<const TokenId> first_block);

 private:
  KeyedHasher hasher_;
  std::vector<std::uint8_t> message_;  // reused between blocks
};

// To be run at start: the key function gives the values that every other build gives, and a chain
// in one go equals the chain block by block. kInternal, with what differs, when not.
Status self_test();

}  // namespace penstock::kvcache
