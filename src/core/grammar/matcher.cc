#include "core/grammar/matcher.h"

#include <algorithm>
#include <utility>

namespace penstock::grammar {

void StackPool::clear() {
  frames_.assign(1, {0, 0, 0});
  slots_.assign(16, 0);
}

std::size_t StackPool::slot(const Frame& frame) const {
  std::uint64_t hash = (std::uint64_t{frame.node} << 32) | frame.below;
  hash = (hash ^ (std::uint64_t{frame.count} << 17)) * 0x9E3779B97F4A7C15;
  std::size_t at = (hash >> 32) & (slots_.size() - 1);
  while (slots_[at] != 0) {
    const Frame& other = frames_[slots_[at]];
    if (other.node == frame.node && other.count == frame.count && other.below == frame.below) break;
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

void StackPool::grow() {
  slots_.assign(slots_.size() * 2, 0);
  for (std::uint32_t i = 1; i < frames_.size(); ++i)
    slots_[slot(frames_[i])] = i;
}

std::uint32_t StackPool::push(Frame frame) {
  const std::size_t at = slot(frame);
  if (slots_[at] != 0) return slots_[at];
  const std::uint32_t number = size();
  frames_.push_back(frame);
  slots_[at] = number;
  if (frames_.size() * 2 > slots_.size()) grow();
  return number;
}

void StackPool::truncate(std::uint32_t size) {
  // Last in, first out: whoever probed past a slot was put in later and is gone already.
  while (frames_.size() > size) {
    slots_[slot(frames_.back())] = 0;
    frames_.pop_back();
  }
}

void Stepper::enter(const Grammar& grammar, StackPool& pool, Position at, Reader& out) {
  passed_.clear();
  out.positions.clear();
  out.complete = false;
  add(grammar, pool, at, out);
}

// Follows calls and ends of rules until only nodes that read something are left.
void Stepper::add(const Grammar& grammar, StackPool& pool, Position first, Reader& out) {
  queue_.assign(1, first);
  while (!queue_.empty()) {
    const Position at = queue_.back();
    queue_.pop_back();
    const Grammar::Node& node = grammar.nodes[at.node];
    if (node.edges != node.edges_end) {
      if (std::ranges::find(out.positions, at) != out.positions.end()) continue;
      if (out.positions.size() >= kPositionsMax) continue;
      out.positions.push_back(at);
    }
    if (!node.final && node.calls == node.calls_end) continue;
    if (node.edges == node.edges_end) {
      if (std::ranges::find(passed_, at) != passed_.end()) continue;
      if (passed_.size() >= kPositionsMax) continue;
      passed_.push_back(at);
    }
    if (node.final) {
      if (at.stack == 0) {
        out.complete = true;
      } else {
        const StackPool::Frame& frame = pool[at.stack];
        queue_.push_back({frame.node, frame.count, frame.below});
      }
    }
    for (std::uint32_t c = node.calls; c < node.calls_end; ++c) {
      const Grammar::Call& call = grammar.calls[c];
      const std::uint32_t stack =
          call.tail ? at.stack : pool.push({call.target, at.count, at.stack});
      queue_.push_back({grammar.rules[call.rule].start, 0, stack});
    }
  }
}

bool Stepper::step(const Grammar& grammar, StackPool& pool, const Reader& in, std::uint32_t symbol,
                   Reader& out) {
  passed_.clear();
  out.positions.clear();
  out.complete = false;
  for (const Position& at : in.positions) {
    const Grammar::Node& node = grammar.nodes[at.node];
    const Grammar::Edge* edge = grammar.edge(node, symbol);
    if (edge == nullptr) continue;
    std::uint32_t count = at.count;
    if (edge->op == EdgeOp::kTick) {
      if (count >= grammar.rules[node.rule].max) continue;
      ++count;
    } else if (edge->op == EdgeOp::kClose && count < grammar.rules[node.rule].min) {
      continue;
    }
    const Grammar::Node& target = grammar.nodes[edge->target];
    const Position to{edge->target, count, at.stack};
    if (in.positions.size() == 1 && !target.final && target.calls == target.calls_end) {
      out.positions.push_back(to);  // the common case: one way, and nothing to follow
    } else {
      add(grammar, pool, to, out);
    }
  }
  return !out.positions.empty() || out.complete;
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  stepper_.enter(*grammar_, pool_, {grammar_->rules[0].start, 0, 0}, reader_);
}

bool Matcher::advance(std::string_view bytes) {
  Reader at = reader_;
  Reader next;
  for (const char byte : bytes) {
    if (!stepper_.step(*grammar_, pool_, at, static_cast<std::uint8_t>(byte), next)) return false;
    std::swap(at, next);
  }
  reader_ = std::move(at);
  return true;
}

bool Matcher::advance_symbol(std::uint32_t symbol) {
  Reader next;
  if (!stepper_.step(*grammar_, pool_, reader_, symbol, next)) return false;
  reader_ = std::move(next);
  return true;
}

}  // namespace penstock::grammar
