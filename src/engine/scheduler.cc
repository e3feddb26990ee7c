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
  clear();
}

void Scheduler::clear() {
  for (Owned& s : running_)
    give_back(*s);
  for (Owned& s : waiting_)
    give_back(*s);
  running_.clear();
  waiting_.clear();
  requests_.clear();
}

void Scheduler::add(std::unique_ptr<Request> request, std::shared_ptr<PrefixLoad> load,
                    std::shared_ptr<RemotePrefix> remote) {
  ENSURE(!load || !remote);
  stalled_ = false;
  auto sequence = std::make_unique<Sequence>();
  request->order = next_order_++;
  sequence->request = request.get();
  sequence->tokens = *request->request.prompt;
  const std::vector<TokenId>& emitted = request->request.emitted;
  sequence->tokens.insert(sequence->tokens.end(), emitted.begin(), emitted.end());
  if (load && load->blocks() > 0) sequence->load = std::move(load);
  sequence->remote = std::move(remote);
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
  if (sequence.load) {
    sequence.load->stop();
    sequence.load = nullptr;
  }
  if (sequence.remote) {
    sequence.remote->stop();
    sequence.remote = nullptr;
  }
  if (!sequence.request->forked) sequence.request->cached_tokens = 0;
  for (const BlockId block : sequence.blocks)
    kv_.release(block);
  sequence.blocks.clear();
  sequence.computed = 0;
  sequence.scheduled = 0;
}

bool Scheduler::is_loading(const Sequence& sequence) const {
  return sequence.load && !sequence.load->ready(0);
}

void Scheduler::start_load(Sequence& sequence) {
  while (sequence.blocks.size() < sequence.load->blocks())
    sequence.blocks.push_back(*kv_.allocate());
  sequence.computed = sequence.load->blocks() * kBlockTokens;
  sequence.load->start(sequence.blocks);
}

bool Scheduler::end_load(Sequence& sequence) {
  const std::uint32_t wanted = sequence.load->blocks();
  const std::uint32_t right = sequence.load->wait_layer(layers_ - 1);
  sequence.load->stop();
  sequence.load = nullptr;
  sequence.shown = right;
  sequence.request->cached_tokens = std::min(right * kBlockTokens, sequence.prompt_length());
  if (right >= wanted) return true;
  while (sequence.blocks.size() > right) {
    kv_.release(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
  sequence.computed = right * kBlockTokens;
  return false;
}

void Scheduler::show(Sequence& sequence, bool answer_end) {
  const std::uint32_t whole = sequence.computed / kBlockTokens;
  const std::uint32_t of_prompt = sequence.prompt_length() / kBlockTokens;
  const std::uint32_t before = std::max(sequence.shown, sequence.offered);
  if (sink_ == nullptr || whole == 0 || (whole <= before && !answer_end)) return;
  sequence.offered = whole;
  const bool taken = sink_->computed({.request = &sequence.request->request,
                                      .choice = sequence.choice,
                                      .tokens = std::span(sequence.tokens).first(sequence.computed),
                                      .blocks = std::span(sequence.blocks).first(whole),
                                      .first_new = std::min(sequence.shown, whole),
                                      .prompt_end = whole == of_prompt,
                                      .answer_end = answer_end});
  if (taken) sequence.shown = std::max(sequence.shown, whole);
}

bool Scheduler::reclaim(const Sequence& sequence) {
  Sequence* victim = nullptr;
  for (const Owned& s : running_) {
    if (!s->blocks.empty() && sequence.older_than(*s)) victim = s.get();
  }
  if (victim == nullptr) return false;
  give_back(*victim);
  preempted_.push_back(victim);
  return true;
}

Scheduler::Room Scheduler::reserve(Sequence& sequence, std::uint32_t rows) {
  const std::uint32_t wanted = blocks_for(sequence.computed + rows);
  const auto held = static_cast<std::uint32_t>(sequence.blocks.size());
  const std::uint32_t first = sequence.computed / kBlockTokens;
  // The block that the first new row goes to, when it exists already, may be shared.
  const bool copy = first < held && kv_.references(sequence.blocks[first]) > 1;
  const std::uint32_t fresh = (wanted > held ? wanted - held : 0) + (copy ? 1 : 0);
  while (kv_.free_blocks() < fresh) {
    const std::uint32_t before = kv_.free_blocks();
    if (!reclaim(sequence)) return Room::kNone;
    // Somebody outside still holds what the victim gave back, not for long.
    if (kv_.free_blocks() == before) return Room::kSoon;
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
  return Room::kYes;
}

std::uint32_t Scheduler::remote_count() const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(running_, [](const Owned& s) { return s->remote != nullptr; }));
}

std::uint64_t Scheduler::prompt_tokens_waiting() const {
  std::uint64_t tokens = 0;
  for (const Owned& s : running_) {
    if (!s->remote && s->pending() > 1) tokens += s->pending();
  }
  for (const Owned& s : waiting_) {
    if (s->remote) continue;
    tokens += s->pending() - (s->load ? s->load->blocks() * kBlockTokens : 0);
  }
  return tokens;
}

bool Scheduler::can_move() const {
  if (!stalled_) return !idle();
  if (kv_.free_blocks() != stalled_free_) return true;
  return std::ranges::any_of(running_,
                             [](const Owned& s) { return s->remote && s->remote->arrived(); });
}

void Scheduler::settle_remotes() {
  for (const Owned& s : running_) {
    if (s->remote && s->remote->arrived()) settle(*s);
  }
}

void Scheduler::settle(Sequence& s) {
  RemotePrefix::Arrival arrival = s.remote->arrival();
  s.remote = nullptr;
  std::uint32_t right = std::min(arrival.tokens, s.length());
  if (arrival.drawn && right == s.length()) {
    s.tokens.push_back(*arrival.drawn);
    s.request->request.emitted.push_back(*arrival.drawn);
  }
  // With several choices each draws its own first token, from the last row of the prompt.
  right = std::min(right, s.length() - 1);
  s.computed = right;
  s.shown = right / kBlockTokens;
  std::uint32_t kept = blocks_for(right);
  if (right == 0 && arrival.instead && arrival.instead->blocks() > 0) {
    s.load = std::move(arrival.instead);
    kept = s.load->blocks();
  }
  while (s.blocks.size() > kept) {
    kv_.release(s.blocks.back());
    s.blocks.pop_back();
  }
  if (s.load) {
    s.computed = kept * kBlockTokens;
    s.load->start(s.blocks);
  }
}

void Scheduler::assign_rows() {
  std::uint32_t budget = limits_.max_batch_tokens;
  for (const bool decodes : {true, false}) {
    for (const Owned& s : running_) {
      if ((s->pending() == 1) != decodes || s->remote || is_loading(*s)) continue;
      s->scheduled = std::min(s->pending(), budget);
      budget -= s->scheduled;
    }
  }
}

void Scheduler::assign_to_loading() {
  for (const Owned& s : running_) {
    if (s->scheduled > 0) return;
  }
  for (const Owned& s : running_) {
    if (!s->load) continue;
    const std::uint32_t rows = std::min(s->pending(), limits_.max_batch_tokens);
    if (reserve(*s, rows) == Room::kYes) s->scheduled = rows;
    return;
  }
}

PlanStats Scheduler::plan(Batch& batch) {
  PlanStats stats;
  preempted_.clear();
  settle_remotes();
  assign_rows();
  std::uint32_t budget = limits_.max_batch_tokens;
  for (const Owned& s : running_) {
    if (s->scheduled == 0) continue;
    const Room room = reserve(*s, s->scheduled);
    if (room == Room::kNone) {
      // Everyone who holds blocks is older: it is this one's turn to wait.
      give_back(*s);
      preempted_.push_back(s.get());
    }
    if (room == Room::kSoon) s->scheduled = 0;
    budget -= s->scheduled;
  }
  requeue_preempted();
  // Nobody comes in while somebody was thrown out: it would only trade places.
  if (preempted_.empty()) admit(budget);
  assign_to_loading();
  stats.preempted = static_cast<std::uint32_t>(preempted_.size());
  requeue_preempted();
  emit(batch, stats);
  stalled_ = batch.rows() == 0;
  stalled_free_ = kv_.free_blocks();
  return stats;
}

void Scheduler::requeue_preempted() {
  for (Sequence* victim : preempted_) {
    const auto at =
        std::ranges::find_if(running_, [&](const Owned& s) { return s.get() == victim; });
    if (at == running_.end()) continue;
    Owned sequence = std::move(*at);
    running_.erase(at);
    const EngineRequest& request = sequence->request->request;
    if (leg_sink_ != nullptr && request.handoff.leg == Leg::kPrefill)
      leg_sink_->thrown_out(request);
    queue(std::move(sequence));
  }
}

void Scheduler::admit(std::uint32_t budget) {
  while (!waiting_.empty() && budget > 0 && running_.size() < limits_.max_sequences) {
    Sequence& s = *waiting_.front();
    // Room for all it has and one token more, so that it does not come in to be thrown out.
    if (kv_.free_blocks() < blocks_for(s.length() + 1)) return;
    if (s.load) {
      start_load(s);
    } else if (s.remote) {
      while (s.blocks.size() < blocks_for(s.length()))
        s.blocks.push_back(*kv_.allocate());
      s.remote->start(s.blocks);
    } else {
      s.scheduled = std::min(s.pending(), budget);
      ENSURE(reserve(s, s.scheduled) == Room::kYes);
      budget -= s.scheduled;
    }
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
    batch.chunks.push_back({row, s->scheduled, s->computed, s->blocks, s->load.get()});
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
    if (s->scheduled == 0) continue;
    const bool is_right = !s->load || end_load(*s);
    if (is_right) {
      s->computed += s->scheduled;
    } else {
      std::ranges::replace(logit_sequences_, s.get(), nullptr);
    }
    s->scheduled = 0;
    show(*s, false);
    if (leg_sink_ != nullptr && is_right && s->request->request.handoff.leg == Leg::kPrefill) {
      leg_sink_->grown(s->request->request, std::span(s->blocks).first(blocks_for(s->computed)),
                       s->computed);
    }
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
    copy->shown = first.shown;
    copy->offered = first.offered;
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
  show(sequence, true);
  give_back(sequence);
  sequence.request->finished[sequence.choice] = true;
  const auto is_it = [&](const Owned& s) { return s.get() == &sequence; };
  if (std::erase_if(running_, is_it) == 0) std::erase_if(waiting_, is_it);
}

void Scheduler::drop(const Request& request) {
  stalled_ = false;
  const auto of_it = [&](const Owned& s) {
    if (s->request != &request) return false;
    if (!s->load && !s->remote) show(*s, true);
    give_back(*s);
    return true;
  };
  std::erase_if(running_, of_it);
  std::erase_if(waiting_, of_it);
}

void Scheduler::forget(RequestId id) {
  requests_.erase(id);
}

}  // namespace penstock::engine
