#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::engine {
namespace {

std::uint32_t blocks_for(std::uint32_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

bool by_age(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
  return a->older_than(*b);
}

}  // namespace

Scheduler::~Scheduler() {
  for (Owned& s : running_)
    give_back(*s);
  for (Owned& s : waiting_)
    give_back(*s);
}

void Scheduler::add(std::unique_ptr<Request> request, std::vector<BlockId> blocks,
                    std::uint32_t computed) {
  auto sequence = std::make_unique<Sequence>();
  request->order = next_order_++;
  request->cached_tokens = computed;
  sequence->request = request.get();
  sequence->tokens = *request->request.prompt;
  const std::vector<TokenId>& emitted = request->request.emitted;
  sequence->tokens.insert(sequence->tokens.end(), emitted.begin(), emitted.end());
  sequence->blocks = std::move(blocks);
  sequence->computed = computed;
  const RequestId id = request->request.id;
  ENSURE(requests_.emplace(id, std::move(request)).second);
  queue(std::move(sequence));
}

Request* Scheduler::find(RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

void Scheduler::queue(Owned sequence) {
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), sequence, by_age),
                  std::move(sequence));
}

void Scheduler::give_back(Sequence& sequence) {
  for (const BlockId block : sequence.blocks)
    kv_.release(block);
  sequence.blocks.clear();
  sequence.computed = 0;
  sequence.scheduled = 0;
}

bool Scheduler::reclaim(const Sequence& sequence) {
  Sequence* victim = nullptr;
  for (const Owned& s : running_) {
    if (!s->blocks.empty() && sequence.older_than(*s)) victim = s.get();
  }
  for (const Owned& s : waiting_) {
    const bool younger = sequence.older_than(*s) && (victim == nullptr || victim->older_than(*s));
    if (!s->blocks.empty() && younger) victim = s.get();
  }
  if (victim == nullptr) return false;
  give_back(*victim);
  const bool was_running =
      std::ranges::any_of(running_, [&](const Owned& s) { return s.get() == victim; });
  if (was_running) preempted_.push_back(victim);
  return true;
}

bool Scheduler::reserve(Sequence& sequence, std::uint32_t rows) {
  const std::uint32_t wanted = blocks_for(sequence.computed + rows);
  const auto held = static_cast<std::uint32_t>(sequence.blocks.size());
  const std::uint32_t first = sequence.computed / kBlockTokens;
  // The block that the first new row goes to, when it exists already, may be shared.
  const bool copy = first < held && kv_.references(sequence.blocks[first]) > 1;
  const std::uint32_t fresh = (wanted > held ? wanted - held : 0) + (copy ? 1 : 0);
  while (kv_.free_blocks() < fresh) {
    if (!reclaim(sequence)) return false;
  }
  // Reclaiming may have dropped the other reference; then nothing needs to be copied.
  if (copy && kv_.references(sequence.blocks[first]) > 1) {
    const BlockId block = *kv_.allocate();
    kv_.copy(sequence.blocks[first], block);
    kv_.release(sequence.blocks[first]);
    sequence.blocks[first] = block;
  }
  while (sequence.blocks.size() < wanted)
    sequence.blocks.push_back(*kv_.allocate());
  return true;
}

void Scheduler::assign_rows() {
  std::uint32_t budget = limits_.max_batch_tokens;
  for (const bool decodes : {true, false}) {
    for (const Owned& s : running_) {
      if ((s->pending() == 1) != decodes) continue;
      s->scheduled = std::min(s->pending(), budget);
      budget -= s->scheduled;
    }
  }
}

PlanStats Scheduler::plan(Batch& batch) {
  PlanStats stats;
  preempted_.clear();
  assign_rows();
  std::uint32_t budget = limits_.max_batch_tokens;
  for (const Owned& s : running_) {
    if (s->scheduled == 0) continue;
    if (!reserve(*s, s->scheduled)) {
      // Everyone who holds blocks is older: it is this one's turn to wait.
      give_back(*s);
      preempted_.push_back(s.get());
    }
    budget -= s->scheduled;
  }
  stats.preempted = static_cast<std::uint32_t>(preempted_.size());
  requeue_preempted();
  // Nobody comes in while somebody was thrown out: it would only trade places.
  if (stats.preempted == 0) admit(budget);
  emit(batch, stats);
  return stats;
}

void Scheduler::requeue_preempted() {
  for (Sequence* victim : preempted_) {
    const auto at =
        std::ranges::find_if(running_, [&](const Owned& s) { return s.get() == victim; });
    if (at == running_.end()) continue;
    Owned sequence = std::move(*at);
    running_.erase(at);
    queue(std::move(sequence));
  }
}

void Scheduler::admit(std::uint32_t budget) {
  while (!waiting_.empty() && budget > 0 && running_.size() < limits_.max_sequences) {
    Sequence& s = *waiting_.front();
    // Room for all it has and one token more, so that it does not come in to be thrown out.
    const std::uint32_t wanted = blocks_for(s.length() + 1);
    const auto held = static_cast<std::uint32_t>(s.blocks.size());
    const std::uint32_t missing = (wanted > held ? wanted - held : 0) + (held > 0 ? 1 : 0);
    while (kv_.free_blocks() < missing && running_.empty() && reclaim(s)) {
    }
    if (kv_.free_blocks() < missing) {
      if (!running_.empty() || s.blocks.empty()) return;
      // Alone, and its own attached prefix is in the way (a copy of its last block does not fit).
      give_back(s);
      continue;
    }
    s.scheduled = std::min(s.pending(), budget);
    if (!reserve(s, s.scheduled)) {
      s.scheduled = 0;
      return;
    }
    budget -= s.scheduled;
    Owned sequence = std::move(waiting_.front());
    waiting_.pop_front();
    running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, by_age),
                    std::move(sequence));
  }
}

void Scheduler::emit(Batch& batch, PlanStats& stats) {
  batch.clear();
  logit_sequences_.clear();
  for (const Owned& s : running_) {
    if (s->scheduled == 0) continue;
    const std::uint32_t row = batch.rows();
    const auto begin = s->tokens.begin() + s->computed;
    batch.tokens.insert(batch.tokens.end(), begin, begin + s->scheduled);
    batch.chunks.push_back({row, s->scheduled, s->computed, s->blocks});
    if (s->scheduled == s->pending()) {
      batch.logit_rows.push_back(batch.rows() - 1);
      logit_sequences_.push_back(s.get());
    }
    if (s->scheduled == 1 && s->generated() > 0) {
      ++stats.decode_tokens;
    } else {
      stats.prefill_tokens += s->scheduled;
    }
  }
}

void Scheduler::advance() {
  for (const Owned& s : running_) {
    s->computed += s->scheduled;
    s->scheduled = 0;
  }
}

std::vector<Sequence*> Scheduler::fork(Sequence& first) {
  std::vector<Sequence*> made;
  Request& request = *first.request;
  if (std::exchange(request.forked, true)) return made;
  for (std::uint32_t choice = 1; choice < request.request.sampling.choices; ++choice) {
    auto copy = std::make_unique<Sequence>();
    copy->request = &request;
    copy->choice = choice;
    copy->tokens = first.tokens;
    made.push_back(copy.get());
    if (running_.size() >= limits_.max_sequences) {
      queue(std::move(copy));
      continue;
    }
    copy->computed = first.computed;
    copy->blocks = first.blocks;
    for (const BlockId block : copy->blocks)
      kv_.retain(block);
    running_.insert(std::upper_bound(running_.begin(), running_.end(), copy, by_age),
                    std::move(copy));
  }
  return made;
}

void Scheduler::finish(Sequence& sequence) {
  give_back(sequence);
  sequence.request->finished[sequence.choice] = true;
  const auto is_it = [&](const Owned& s) { return s.get() == &sequence; };
  if (std::erase_if(running_, is_it) == 0) std::erase_if(waiting_, is_it);
}

void Scheduler::drop(const Request& request) {
  const auto of_it = [&](const Owned& s) {
    if (s->request != &request) return false;
    give_back(*s);
    return true;
  };
  std::erase_if(running_, of_it);
  std::erase_if(waiting_, of_it);
}

void Scheduler::forget(RequestId id) {
  requests_.erase(id);
}

const Sequence* Scheduler::running(RequestId id, std::uint32_t choice) const {
  for (const Owned& s : running_) {
    if (s->request->request.id == id && s->choice == choice) return s.get();
  }
  return nullptr;
}

}  // namespace penstock::engine
