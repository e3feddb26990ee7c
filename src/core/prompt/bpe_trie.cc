#include "core/prompt/bpe_trie.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace penstock {

// Places the nodes of a sorted list of keys, depth first.
class TrieBuilder {
 public:
  explicit TrieBuilder(std::vector<ByteTrie::Item> items) : items_(std::move(items)) {
    std::ranges::sort(items_, [](const auto& a, const auto& b) {
      return std::tie(a.key, a.value) < std::tie(b.key, b.value);
    });
    const auto repeated = std::ranges::unique(items_, {}, &ByteTrie::Item::key);
    items_.erase(repeated.begin(), repeated.end());
  }

  Result<ByteTrie> build() {
    grow(1024);
    cursor_ = kFirstSlot;
    struct Node {
      std::size_t begin, end, depth;
      std::uint32_t slot;  // kNone for the root
    };
    std::vector<Node> open{{0, items_.size(), 0, ByteTrie::kNone}};
    while (!open.empty()) {
      const Node node = open.back();
      open.pop_back();
      std::size_t begin = node.begin;
      if (begin < node.end && items_[begin].key.size() == node.depth) {
        if (node.slot != ByteTrie::kNone) trie_.slots_[node.slot].value = items_[begin].value;
        ++begin;
      }
      const std::size_t children = collect_children(begin, node.end, node.depth);
      if (children == 0) continue;
      const std::uint32_t base = place(children);
      if (base == ByteTrie::kNone) {
        return fail(ErrorCode::kPayloadTooLarge, "the vocabulary is too large for the token trie",
                    "model.vocab");
      }
      if (node.slot == ByteTrie::kNone) {
        trie_.root_base_ = base;
      } else {
        trie_.slots_[node.slot].link |= base << ByteTrie::kBaseShift;
      }
      for (std::size_t i = 0; i < children; ++i) {
        const std::uint32_t slot = base + labels_[i];
        take(slot);
        trie_.slots_[slot].link = ByteTrie::kUsed | labels_[i];
        open.push_back({starts_[i], starts_[i + 1], node.depth + 1, slot});
      }
    }
    return std::move(trie_);
  }

 private:
  // So that every base is above 255, where no child of base 0 can lie.
  static constexpr std::size_t kFirstSlot = 512;

  // Fills labels_ and starts_ with the children of the items [begin, end) at this depth.
  std::size_t collect_children(std::size_t begin, std::size_t end, std::size_t depth) {
    std::size_t count = 0;
    std::size_t i = begin;
    while (i < end) {
      const auto label = static_cast<unsigned char>(items_[i].key[depth]);
      labels_[count] = label;
      starts_[count++] = i;
      const auto next = std::partition_point(
          items_.begin() + static_cast<std::ptrdiff_t>(i),
          items_.begin() + static_cast<std::ptrdiff_t>(end),
          [&](const auto& item) { return static_cast<unsigned char>(item.key[depth]) <= label; });
      i = static_cast<std::size_t>(next - items_.begin());
    }
    starts_[count] = end;
    return count;
  }

  // A node with one child takes the first hole. One with several looks on from where the last such
  // node found its place, so that crowded regions are not searched again and again.
  std::uint32_t place(std::size_t children) {
    std::uint32_t slot = children == 1 ? next_free_[0] : cursor_;
    while (true) {
      if (slot == 0) {
        const std::size_t end = trie_.slots_.size();
        const std::size_t more = std::max<std::size_t>(512, end / 4);
        if (end + more > ByteTrie::kSlotsMax) return ByteTrie::kNone;
        grow(more);
        slot = static_cast<std::uint32_t>(end);
      }
      if (fits(slot - labels_[0], children)) break;
      slot = next_free_[slot];
    }
    if (children > 1) cursor_ = slot;
    base_taken_[slot - labels_[0]] = true;
    return slot - labels_[0];
  }

  bool fits(std::uint32_t base, std::size_t children) const {
    if (base_taken_[base] || base + 256 > trie_.slots_.size()) return false;
    for (std::size_t i = 0; i < children; ++i) {
      if (trie_.slots_[base + labels_[i]].link != 0) return false;
    }
    return true;
  }

  // Free slots form a ring through slot 0, in ascending order.
  void grow(std::size_t more) {
    const std::size_t begin = std::max(kFirstSlot, next_free_.size());
    const std::size_t end = trie_.slots_.size() + more;
    trie_.slots_.resize(end);
    base_taken_.resize(end);
    next_free_.resize(end);
    previous_free_.resize(end);
    for (std::size_t slot = begin; slot < end; ++slot) {
      const std::uint32_t last = previous_free_[0];
      next_free_[last] = static_cast<std::uint32_t>(slot);
      previous_free_[slot] = last;
      next_free_[slot] = 0;
      previous_free_[0] = static_cast<std::uint32_t>(slot);
    }
  }

  void take(std::uint32_t slot) {
    if (slot == cursor_) cursor_ = next_free_[slot];
    next_free_[previous_free_[slot]] = next_free_[slot];
    previous_free_[next_free_[slot]] = previous_free_[slot];
  }

  std::vector<ByteTrie::Item> items_;
  ByteTrie trie_;
  std::vector<bool> base_taken_;
  std::vector<std::uint32_t> next_free_;
  std::vector<std::uint32_t> previous_free_;
  std::uint32_t cursor_ = 0;
  std::array<unsigned char, 256> labels_{};
  std::array<std::size_t, 257> starts_{};
};

Result<ByteTrie> ByteTrie::build(std::vector<Item> items) {
  return TrieBuilder(std::move(items)).build();
}

std::uint32_t ByteTrie::find(std::string_view key) const {
  std::uint32_t found = kNone;
  for_each_prefix(key, [&](std::size_t end, std::uint32_t value) {
    if (end == key.size()) found = value;
  });
  return found;
}

}  // namespace penstock
