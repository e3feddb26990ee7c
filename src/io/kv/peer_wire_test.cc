#include "io/kv/peer_wire.h"

#include <doctest/doctest.h>

namespace penstock::kv::peer {
namespace {

Hash128 hash(std::uint8_t seed) {
  Hash128 value;
  for (std::size_t i = 0; i < value.bytes.size(); ++i)
    value.bytes[i] = static_cast<std::uint8_t>(seed + i);
  return value;
}

BlockInfo sample_block() {
  BlockInfo info;
  info.name = {hash(1), KvGroup::kWindow};
  info.parent = hash(2);
  info.root = hash(3);
  info.depth = 77;
  info.tenant = 0x1122334455667788;
  info.ttl_class = 2;
  info.slices = {{4096, 0xdeadbeef}, {1000, 7}};
  return info;
}

service::Fetch sample_read() {
  service::Fetch fetch{9, hash(3), 1, 5, {}, std::chrono::milliseconds(800)};
  fetch.blocks = {{{hash(4), KvGroup::kHistory}, hash(3), 0},
                  {{hash(5), KvGroup::kHistory}, hash(4), 1}};
  return fetch;
}

}  // namespace

TEST_CASE("bodies are what they were before, and no prefix or extension of one is another") {
  const Hello hello{{1, 2, 3}, "host-7"};
  const Challenge challenge{{9}, hash(8)};
  const Holdings holdings{true,
                          {{{hash(1), KvGroup::kHistory}, 4096}, {{hash(2), KvGroup::kWindow}, 0}}};
  CHECK(*decode_hello(hello_body(hello)) == hello);
  CHECK(*decode_challenge(challenge_body(challenge)) == challenge);
  CHECK(*decode_proof(proof_body(hash(4))) == hash(4));
  CHECK(*decode_holdings(holdings_body(holdings)) == holdings);
  CHECK(*decode_read(read_body(sample_read()), 9) == sample_read());
  const Block block = *decode_block(block_body(MissReason::kNone, sample_block()));
  CHECK(block.reason == MissReason::kNone);
  CHECK(block.info.name == sample_block().name);
  CHECK(block.info.parent == sample_block().parent);
  CHECK(block.info.root == sample_block().root);
  CHECK(block.info.depth == 77);
  CHECK(block.info.tenant == sample_block().tenant);
  CHECK(block.info.ttl_class == 2);
  CHECK(block.info.slices == sample_block().slices);
  CHECK(decode_block(block_body(MissReason::kExpired, {}))->reason == MissReason::kExpired);
  const BlockName damaged{hash(6), KvGroup::kWindow};
  CHECK(*decode_damaged(damaged_body(damaged)) == damaged);

  const auto exact = [](const std::string& body, const auto& decodes) {
    for (std::size_t n = 0; n < body.size(); ++n)
      CHECK(!decodes(body.substr(0, n)));
    CHECK(!decodes(body + '\0'));
  };
  exact(challenge_body(challenge), [](const auto& b) { return decode_challenge(b).has_value(); });
  exact(proof_body(hash(4)), [](const auto& b) { return decode_proof(b).has_value(); });
  exact(holdings_body(holdings), [](const auto& b) { return decode_holdings(b).has_value(); });
  exact(read_body(sample_read()), [](const auto& b) { return decode_read(b, 9).has_value(); });
  exact(damaged_body(damaged), [](const auto& b) { return decode_damaged(b).has_value(); });
  exact(block_body(MissReason::kNone, sample_block()),
        [](const auto& b) { return decode_block(b).has_value(); });
}

TEST_CASE("a header with any bit flipped is refused") {
  const std::string good = frame({Op::kRead, 7, 99, 0}, "body");
  const Header header = *decode_header(std::string_view(good).substr(0, kHeaderBytes));
  CHECK(header == Header{Op::kRead, 7, 99, 4});
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    CHECK(!decode_header(std::string_view(bad).substr(0, kHeaderBytes)));
  }
}

TEST_CASE("proofs depend on the secret, on who proves, on both nonces and on the run") {
  std::array<std::uint8_t, 32> secret{1};
  PeerProofs proofs(secret);
  secret[31] = 1;
  PeerProofs others(secret);
  const Nonce a{1};
  const Nonce b{2};
  const Hash128 proof = proofs.of_server(a, b, 3);
  CHECK(same_proof(proof, proofs.of_server(a, b, 3)));
  for (const Hash128& other :
       {others.of_server(a, b, 3), proofs.of_client(a, b, 3), proofs.of_server(b, a, 3),
        proofs.of_server(a, a, 3), proofs.of_server(a, b, 4)})
    CHECK(!same_proof(proof, other));
  CHECK(random_nonce() != random_nonce());
}

}  // namespace penstock::kv::peer
