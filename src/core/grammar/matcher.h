// Reader and Matcher: where in a grammar a text has got to.
//
// A Reader is a set of positions: a node, the rule's count, and a stack of where to return to.
// Stacks share their lower parts (StackPool), so a reader is a few words, and keeping one is
// keeping a copy of it: that is how steps are taken back. A Matcher is a pool, a reader, and the
// grammar; it is a value, and a copy goes on alone (a request with n > 1).
//
// Invariants: a reader without positions that isn't complete exists only before start() and after a
// refused byte. Positions beyond kPositionsMax (ambiguous grammars) are dropped, which makes what
// is accepted less, never more, and leaves no dead end. Memory grows with depth, which is below the
// length of the text. Concurrency: one thread each. Source: docs/design/0011-structured-output.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/grammar/grammar.h"

namespace penstock::grammar {

struct Position {
  std::uint32_t node;
  std::uint32_t count;
  std::uint32_t stack;  // of the pool; 0 = empty
  bool operator==(const Position&) const = default;
};

struct Reader {
  std::vector<Position> positions;  // nodes with edges only
  bool complete = false;            // the text so far is a whole one
};

class StackPool {
 public:
  struct Frame {
    std::uint32_t node;
    std::uint32_t count;
    std::uint32_t below;
  };
  StackPool() { clear(); }

  // The stack with this frame on top; equal stacks have equal numbers.
  std::uint32_t push(Frame frame);
  const Frame& operator[](std::uint32_t stack) const { return frames_[stack]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(frames_.size()); }
  // Forgets all stacks from number `size` on.
  void truncate(std::uint32_t size);
  void clear();

 private:
  std::size_t slot(const Frame& frame) const;
  void grow();

  std::vector<Frame> frames_;         // 0 is the empty stack
  std::vector<std::uint32_t> slots_;  // open addressing; 0 = free
};

// Steps of a grammar over one pool. Holds scratch, so one per thread.
class Stepper {
 public:
  static constexpr std::size_t kPositionsMax = 256;

  // The positions from which a text, or the rest of one after `node`, begins.
  void enter(const Grammar& grammar, StackPool& pool, Position at, Reader& out);
  // `out` = `in` after the symbol; false, and an empty `out`, when it can't come next. Not aliased.
  bool step(const Grammar& grammar, StackPool& pool, const Reader& in, std::uint32_t symbol,
            Reader& out);

 private:
  void add(const Grammar& grammar, StackPool& pool, Position at, Reader& out);

  std::vector<Position> queue_;
  std::vector<Position> passed_;  // positions without edges that were taken care of
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  // Takes the bytes, or nothing of them and answers false.
  bool advance(std::string_view bytes);
  // Takes exactly one symbol: a byte or a special token.
  bool advance_symbol(std::uint32_t symbol);
  // The text may end here.
  bool complete() const { return reader_.complete; }
  // Nothing can follow.
  bool exhausted() const { return reader_.positions.empty(); }

  const Reader& reader() const { return reader_; }
  // Goes back to a reader of this matcher.
  void restore(Reader reader) { reader_ = std::move(reader); }
  const Grammar& grammar() const { return *grammar_; }
  StackPool& pool() { return pool_; }

 private:
  std::shared_ptr<const Grammar> grammar_;
  StackPool pool_;
  Reader reader_;
  Stepper stepper_;
};

}  // namespace penstock::grammar
