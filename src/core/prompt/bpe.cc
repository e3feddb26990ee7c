#include "core/prompt/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace penstock {

MergeTable::MergeTable(std::size_t count) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(count * 2, 4));
  words_.assign(slots, kEmpty);
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  filter_mask_ = std::bit_ceil(std::max<std::uint64_t>(count * 8, 64)) - 1;
  filter_.assign(filter_mask_ / 64 + 1, 0);
}

void MergeTable::insert(TokenId left, TokenId right, std::uint32_t rank) {
  const std::uint64_t pair = std::uint64_t{left} << 20 | right;
  const std::uint64_t hash = hash_of(pair);
  const std::uint64_t bit = hash & filter_mask_;
  filter_[bit / 64] |= std::uint64_t{1} << (bit % 64);
  std::size_t i = hash >> shift_;
  while (words_[i] != kEmpty && words_[i] >> 24 != pair)
    i = (i + 1) & mask_;
  words_[i] = pair << 24 | rank;
}

Result<Bpe> Bpe::build(const Vocabulary& vocabulary) {
  if (vocabulary.merges.size() >= kRankLimit) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("{} merges are more than the {} that fit", vocabulary.merges.size(),
                            kRankLimit),
                "model.merges");
  }
  Bpe bpe;
  bpe.ignore_merges_ = vocabulary.ignore_merges;
  const std::size_t ids = vocabulary.bytes.size();
  bpe.byte_token_.fill(kNone);
  for (std::size_t id = 0; id < ids; ++id) {
    const std::string_view bytes = vocabulary.bytes[id];
    if (bytes.size() == 1) {
      bpe.byte_token_[static_cast<unsigned char>(bytes[0])] = static_cast<TokenId>(id);
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (bpe.byte_token_[byte] == kNone) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the vocabulary has no entry for byte 0x{:02X}; byte-level BPE needs "
                              "all 256",
                              byte),
                  "model.vocab");
    }
  }
  bpe.pairs_ = MergeTable(vocabulary.merges.size());
  bpe.products_.reserve(vocabulary.merges.size());
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const Merge& rule = vocabulary.merges[rank];
    bpe.products_.push_back(rule.product);
    if (vocabulary.added[rule.product]) continue;
    bpe.pairs_.insert(rule.left, rule.right, static_cast<std::uint32_t>(rank));
  }
  bpe.find_origins(vocabulary);
  bpe.make_edges(vocabulary);
  TRY_STATUS(bpe.build_trie(vocabulary));
  return bpe;
}

// Merges every entry's own bytes: shows which are reachable, and by which last merge.
void Bpe::find_origins(const Vocabulary& vocabulary) {
  const std::size_t ids = vocabulary.bytes.size();
  origins_.resize(ids);
  Scratch scratch;
  for (std::size_t id = 0; id < ids; ++id) {
    const std::string_view bytes = vocabulary.bytes[id];
    if (bytes.size() == 1) origins_[id].rank = kByte;
    if (bytes.size() < 2 || vocabulary.added[id]) continue;
    const std::uint32_t rank = merge_bytes(bytes, scratch);
    if (scratch.nodes.front().next != kNone || scratch.nodes.front().id != id) continue;
    const Merge& rule = vocabulary.merges[rank];
    origins_[id] = {rule.left, rule.right, static_cast<std::int32_t>(rank)};
  }
}

void Bpe::make_edges(const Vocabulary& vocabulary) {
  const std::size_t ids = vocabulary.bytes.size();
  edges_.resize(ids);
  for (std::size_t id = 0; id < ids; ++id) {
    const Origin& origin = origins_[id];
    edges_[id].right_child = origin.right;
    edges_[id].left_child = origin.left;
    edges_[id].rank = origin.rank;
    edges_[id].length = static_cast<std::uint32_t>(vocabulary.bytes[id].size());
  }
  for (std::size_t rank = vocabulary.merges.size(); rank-- > 0;) {
    const Merge& rule = vocabulary.merges[rank];
    if (pairs_.rank(rule.left, rule.right) != rank) continue;
    edges_[rule.left].left_rank_min = static_cast<std::uint32_t>(rank);
    edges_[rule.right].right_rank_min = static_cast<std::uint32_t>(rank);
  }
  // The parts of a reachable token are reachable, for they were merged just as they are alone; and
  // they are shorter, so in this order they are marked before it.
  std::vector<TokenId> by_length;
  for (std::size_t id = 0; id < ids; ++id) {
    if (origins_[id].rank >= 0) by_length.push_back(static_cast<TokenId>(id));
  }
  std::ranges::sort(by_length, {}, [&](TokenId id) { return edges_[id].length; });
  for (const TokenId id : by_length) {
    const Origin& origin = origins_[id];
    if (origin.rank > edges_[origin.left].rank && origin.rank > edges_[origin.right].rank) {
      continue;
    }
    edges_[id].rank = kIrregular;
    ++irregular_tokens_;
  }
}

Status Bpe::build_trie(const Vocabulary& vocabulary) {
  std::vector<ByteTrie::Item> items;
  for (std::size_t id = 0; id < vocabulary.bytes.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes[id];
    if (bytes.empty() || (vocabulary.added[id] && bytes.size() > 1)) continue;
    const bool reachable = origins_[id].rank != kUnknown;
    items.push_back({bytes, static_cast<std::uint32_t>(id) | (reachable ? 0 : kUnreachable)});
  }
  TRY(trie_, ByteTrie::build(std::move(items)));
  for (std::size_t id = 0; id < vocabulary.bytes.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes[id];
    if (bytes.size() < 2) continue;
    const std::string_view prefix = bytes.substr(0, bytes.size() - 1);
    edges_[id].shorter = longest(prefix).token;
  }
  return {};
}

Bpe::Longest Bpe::longest(std::string_view text) const {
  Longest found;
  trie_.for_each_prefix(text, [&](std::size_t end, std::uint32_t value) {
    if ((value & kUnreachable) == 0) {
      found.token = value;
      // Its border is tested next; the walk goes on while this arrives.
      __builtin_prefetch(&edges_[value]);
    }
    if (end == text.size()) found.whole = value & ~kUnreachable;
  });
  return found;
}

TokenId Bpe::find(std::string_view bytes) const {
  return bytes.empty() ? kNone : longest(bytes).whole;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  const Longest first = longest(piece);
  if (first.whole != kNone && (first.whole == first.token || ignore_merges_)) {
    out.push_back(first.whole);
  } else {
    match(piece, first.token, scratch, out);
  }
}

void Bpe::encode_by_merging(std::string_view piece, Scratch& scratch,
                            std::vector<TokenId>& out) const {
  if (ignore_merges_) {
    if (const TokenId whole = find(piece); whole != kNone) {
      out.push_back(whole);
      return;
    }
  }
  merge_bytes(piece, scratch);
  for (std::uint32_t i = 0; i != kNone; i = scratch.nodes[i].next) {
    out.push_back(scratch.nodes[i].id);
  }
}

// Whether merging left's and right's bytes together would leave the border between them.
bool Bpe::border_holds(TokenId left, TokenId right, Scratch& scratch) const {
  const Edges* left_edges = &edges_[left];
  const Edges* right_edges = &edges_[right];
  if (left_edges->rank == kIrregular || right_edges->rank == kIrregular) {
    return border_holds_by_merging(left, right, scratch);
  }
  // The crossing pair wins when its rank is below `limit`: that of the earliest merge still to come
  // on either edge, plus one when that merge is on the right (of equal ranks the left goes first).
  std::uint32_t limit = kNone;
  while (true) {
    if (left_edges->left_rank_min < limit && right_edges->right_rank_min < limit &&
        pairs_.rank(left, right) < limit) {
      return false;
    }
    if (left_edges->rank > right_edges->rank) {
      limit = static_cast<std::uint32_t>(left_edges->rank);
      left = left_edges->right_child;
      left_edges = &edges_[left];
    } else if (right_edges->rank != kByte) {
      limit = static_cast<std::uint32_t>(right_edges->rank) + 1;
      right = right_edges->left_child;
      right_edges = &edges_[right];
    } else {
      return true;
    }
  }
}

bool Bpe::border_holds_by_merging(TokenId left, TokenId right, Scratch& scratch) const {
  std::vector<TokenId>& leaves = scratch.leaves;
  leaves.clear();
  append_leaves(left, leaves);
  append_leaves(right, leaves);
  merge(leaves, scratch);
  const Scratch::Node& first = scratch.nodes.front();
  if (first.id != left || first.next == kNone) return false;
  const Scratch::Node& second = scratch.nodes[first.next];
  return second.id == right && second.next == kNone;
}

// Appends the single bytes of a reachable token. Depth is at most its length: a part is shorter.
void Bpe::append_leaves(TokenId token, std::vector<TokenId>& leaves) const {
  std::vector<TokenId> open{token};
  while (!open.empty()) {
    const TokenId next = open.back();
    open.pop_back();
    if (origins_[next].rank == kByte) {
      leaves.push_back(next);
    } else {
      open.push_back(origins_[next].right);
      open.push_back(origins_[next].left);
    }
  }
}

void Bpe::match(std::string_view piece, TokenId first, Scratch& scratch,
                std::vector<TokenId>& out) const {
  const std::size_t out_begin = out.size();
  std::vector<std::uint64_t>& dead = scratch.dead;
  dead.assign(piece.size() / 64 + 1, 0);
  std::size_t position = 0;
  TokenId token = first;
  while (true) {
    const TokenId previous = out.size() > out_begin ? out.back() : kNone;
    for (; token != kNone; token = edges_[token].shorter) {
      const std::size_t end = position + edges_[token].length;
      if ((dead[end / 64] >> (end % 64) & 1) != 0) continue;
      if (previous == kNone || border_holds(previous, token, scratch)) break;
    }
    if (token != kNone) {
      out.push_back(token);
      position += edges_[token].length;
      if (position == piece.size()) return;
      token = longest(piece.substr(position)).token;
    } else {
      // No token may follow here: step back, and the token before finds its end dead.
      ENSURE(out.size() > out_begin);
      dead[position / 64] |= std::uint64_t{1} << (position % 64);
      token = out.back();
      out.pop_back();
      position -= edges_[token].length;
    }
  }
}

std::uint32_t Bpe::merge_bytes(std::string_view piece, Scratch& scratch) const {
  scratch.leaves.clear();
  for (const char c : piece) {
    scratch.leaves.push_back(byte_token_[static_cast<unsigned char>(c)]);
  }
  return merge(scratch.leaves, scratch);
}

std::uint32_t Bpe::merge(std::span<const TokenId> leaves, Scratch& scratch) const {
  // Below this length looking at every pair is cheaper than keeping a heap.
  constexpr std::size_t kScanMax = 48;
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  nodes.resize(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    const bool is_last = i + 1 == leaves.size();
    nodes[i] = {leaves[i], is_last ? kNone : pairs_.rank(leaves[i], leaves[i + 1]), index - 1,
                is_last ? kNone : index + 1};
  }
  std::uint32_t last = kNone;
  if (leaves.size() <= kScanMax) {
    merge_by_scan(scratch, last);
  } else {
    merge_by_heap(scratch, last);
  }
  return last;
}

namespace {

// Joins node i with the next one under a new id; returns false when there is no next.
void join(std::vector<Bpe::Scratch::Node>& nodes, std::uint32_t i, TokenId product,
          const MergeTable& pairs) {
  constexpr std::uint32_t kNone = MergeTable::kNone;
  Bpe::Scratch::Node& node = nodes[i];
  Bpe::Scratch::Node& gone = nodes[node.next];
  gone.rank = kNone;
  node.id = product;
  node.next = gone.next;
  node.rank = kNone;
  if (node.next != kNone) {
    nodes[node.next].previous = i;
    node.rank = pairs.rank(product, nodes[node.next].id);
  }
  if (node.previous != kNone) {
    nodes[node.previous].rank = pairs.rank(nodes[node.previous].id, product);
  }
}

}  // namespace

void Bpe::merge_by_scan(Scratch& scratch, std::uint32_t& last) const {
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  while (true) {
    std::uint32_t best = kNone;
    std::uint32_t best_node = 0;
    for (std::uint32_t i = 0; i != kNone; i = nodes[i].next) {
      if (nodes[i].rank < best) {
        best = nodes[i].rank;
        best_node = i;
      }
    }
    if (best == kNone) return;
    join(nodes, best_node, products_[best], pairs_);
    last = best;
  }
}

void Bpe::merge_by_heap(Scratch& scratch, std::uint32_t& last) const {
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  std::vector<std::uint64_t>& heap = scratch.heap;  // rank << 32 | node, smallest first
  heap.clear();
  const auto entry = [&](std::uint32_t i) { return std::uint64_t{nodes[i].rank} << 32 | i; };
  for (std::uint32_t i = 0; i != kNone; i = nodes[i].next) {
    if (nodes[i].rank != kNone) heap.push_back(entry(i));
  }
  std::ranges::make_heap(heap, std::greater<>());
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<std::uint32_t>(top);
    // An entry whose pair has changed since is out of date.
    if (nodes[i].rank != top >> 32) continue;
    join(nodes, i, products_[top >> 32], pairs_);
    last = static_cast<std::uint32_t>(top >> 32);
    for (const std::uint32_t changed : {i, nodes[i].previous}) {
      if (changed == kNone || nodes[changed].rank == kNone) continue;
      heap.push_back(entry(changed));
      std::ranges::push_heap(heap, std::greater<>());
    }
  }
}

}  // namespace penstock
