// MissHistory: why blocks are not there, for explain.
//
// Three bounded memories, the oldest going first: the last reason noted for a block's name; for a
// content tag (a keyed hash of a first block's tokens alone, KeyChain::content_tag) the roots
// under which that block was stored; for a root, its scope and build in words. A block that is
// unknown by name, while its chain's first block is held under another root, missed because of
// the scope or the build. That is for administrators: it never changes what a request gets or how
// long it takes.
//
// Invariants: never more than the limits. A block that is stored has no reason.
// Units and shapes: about 130 bytes a name, 250 a tag. Concurrency: one thread.
// Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "domain/kv.h"

namespace penstock::kvcache {

struct MissHistoryLimits {
  std::size_t names_max = std::size_t{1} << 18;
  std::size_t tags_max = std::size_t{1} << 16;
  std::size_t roots_of_tag_max = 8;
  std::size_t roots_max = 4096;
};

class MissHistory {
 public:
  struct Root {
    std::string scope;
    std::string build;
  };
  struct Noted {
    MissReason reason = MissReason::kNone;
    UnixSeconds when;
  };
  struct Explained {
    MissReason reason = MissReason::kNone;  // kNone: the block is there
    std::optional<UnixSeconds> when;        // of a noted reason
    std::optional<BlockKey> other_root;     // with kOtherScope and kOtherBuild
  };
  using Present = std::function<bool(const BlockName&)>;

  explicit MissHistory(const MissHistoryLimits& limits = {})
      : limits_(limits),
        noted_(limits.names_max),
        tags_(limits.tags_max),
        roots_(limits.roots_max) {}

  // The block went, or was not taken.
  void note(const BlockName& name, MissReason reason, UnixSeconds when);
  // It is there (again).
  void stored(const BlockName& name) { noted_.erase(name); }
  // What a root stands for.
  void describe(const BlockKey& root, std::string scope, std::string build);
  // A chain's first block was stored; `key` is its key under this root.
  void first_block(std::uint64_t content_tag, const BlockKey& root, const BlockKey& key);

  std::optional<Noted> find(const BlockName& name) const;
  const Root* root(const BlockKey& root) const { return roots_.find(root); }

  // Why each history block of a chain is not there; `present` says which are.
  std::vector<Explained> explain(const BlockKey& root, std::span<const BlockKey> keys,
                                 std::uint64_t content_tag, const Present& present) const;

  std::size_t names() const { return noted_.size(); }
  // How often anything of it was looked for, or put in.
  std::uint64_t look_ups() const {
    return noted_.look_ups() + tags_.look_ups() + roots_.look_ups();
  }

 private:
  // A map of limited size: what was put in longest ago goes first.
  template <typename Key, typename Value>
  class Bounded {
   public:
    explicit Bounded(std::size_t size_max) : size_max_(size_max) {}
    // The key's value, made when absent.
    Value& at(const Key& key) {
      ++look_ups_;
      if (const auto known = where_.find(key); known != where_.end()) {
        order_.splice(order_.end(), order_, known->second);
        return known->second->second;
      }
      if (order_.size() >= size_max_) erase(order_.front().first);
      order_.emplace_back(key, Value{});
      where_[key] = std::prev(order_.end());
      return order_.back().second;
    }
    const Value* find(const Key& key) const {
      ++look_ups_;
      const auto known = where_.find(key);
      return known == where_.end() ? nullptr : &known->second->second;
    }
    void erase(Key key) {
      const auto known = where_.find(key);
      if (known == where_.end()) return;
      order_.erase(known->second);
      where_.erase(known);
    }
    std::size_t size() const { return order_.size(); }
    std::uint64_t look_ups() const { return look_ups_; }

   private:
    std::size_t size_max_;
    mutable std::uint64_t look_ups_ = 0;
    std::list<std::pair<Key, Value>> order_;
    std::unordered_map<Key, typename std::list<std::pair<Key, Value>>::iterator> where_;
  };
  struct FirstBlock {
    BlockKey root;
    BlockKey key;
  };

  // Which other root holds the first block, and whether scope or build keeps it from this one.
  Explained elsewhere(const BlockKey& root, std::uint64_t content_tag,
                      const Present& present) const;

  MissHistoryLimits limits_;
  Bounded<BlockName, Noted> noted_;
  Bounded<std::uint64_t, std::vector<FirstBlock>> tags_;
  Bounded<BlockKey, Root> roots_;
};

}  // namespace penstock::kvcache
