// A byte trie in two arrays' worth of memory: the longest known string at a position, in one walk.
//
// Double array: the child of a node for byte c lies in slot base + c and says so in its label.
// Bases are unique, so the label alone identifies the parent and a slot is eight bytes.
//
// Invariants: values are below kValueLimit. Walking never leaves the array: it ends 256 slots after
// the largest base.
// Errors: build returns kPayloadTooLarge when the strings need more than kSlotsMax slots.
// Concurrency: immutable after build.
// Source: J. Aoe, "An efficient digital search algorithm by using a double-array structure" (1989).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

class ByteTrie {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  static constexpr std::uint32_t kValueLimit = 0x80000000;
  static constexpr std::size_t kSlotsMax = std::size_t{1} << 23;

  struct Item {
    std::string_view key;  // not empty
    std::uint32_t value = 0;
  };

  // Builds the trie; of equal keys the one with the lowest value counts.
  static Result<ByteTrie> build(std::vector<Item> items);
  ByteTrie() = default;

  // Calls f(end, value) for every known prefix of `text`, shortest first.
  template <typename F>
  void for_each_prefix(std::string_view text, F f) const {
    std::uint32_t base = root_base_;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const Slot slot = slots_[base + byte];
      if ((slot.link & kLabelMask) != (kUsed | byte)) return;
      if (slot.value != kNone) f(i + 1, slot.value);
      base = slot.link >> kBaseShift;
    }
  }

  // Returns the value of exactly this key, or kNone.
  std::uint32_t find(std::string_view key) const;

 private:
  friend class TrieBuilder;
  static constexpr std::uint32_t kLabelMask = 0x1FF;
  static constexpr std::uint32_t kUsed = 0x100;
  static constexpr std::uint32_t kBaseShift = 9;

  struct Slot {
    std::uint32_t link = 0;  // base << 9 | used << 8 | label
    std::uint32_t value = kNone;
  };
  // Slots 0..255 stay unused: base 0 is that of nodes without children.
  std::vector<Slot> slots_ = std::vector<Slot>(256);
  std::uint32_t root_base_ = 0;
};

}  // namespace penstock
