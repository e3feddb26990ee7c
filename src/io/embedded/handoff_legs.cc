#include "io/embedded/handoff_legs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {

using engine::BlockId;
using engine::kBlockTokens;

namespace {

std::uint32_t tokens_of(const EngineRequest& request) {
  return static_cast<std::uint32_t>(request.prompt->size() + request.emitted.size());
}

}  // namespace

class HandoffLegs::RemoteLeg final : public engine::RemotePrefix {
 public:
  // The owner is told at once who will read: its KV stays while this waits for blocks.
  RemoteLeg(HandoffLegs& legs, const EngineRequest& request)
      : legs_(legs),
        request_(request),
        pull_(legs.port_->pull(request.handoff, legs.engine_.description().name, tokens_of(request),
                               {})) {}
  ~RemoteLeg() override { stop(); }

  void start(std::span<const BlockId> to) override {
    std::vector<std::uint32_t> blocks;
    for (const BlockId block : to) {
      legs_.engine_.pool().retain(block);
      blocks.push_back(block.value);
    }
    legs_.port_->fill(pull_, std::move(blocks));
  }
  bool arrived() override {
    if (pull_->state() == Pull::State::kRunning) return false;
    if (pull_->state() == Pull::State::kDone) return true;
    if (!std::exchange(looked_, true)) {
      if (legs_.log_) legs_.log_(pull_->why());
      fetch_ = legs_.fetch_(request_);
    }
    return fetch_ == nullptr || fetch_->final();
  }
  Arrival arrival() override {
    if (pull_->state() == Pull::State::kFailed) {
      return {0, std::nullopt, fetch_ ? legs_.prefix_(std::move(fetch_)) : nullptr};
    }
    Arrival arrival{pull_->tokens(), std::nullopt, nullptr};
    if (const auto& first = pull_->first_output(); first && first->tokens.size() == 1) {
      arrival.drawn = first->tokens[0].token;
      legs_.arrived_.push_back(*first);
      legs_.arrived_.back().request = request_.id;
      // Cached tokens are the prefill leg's to report, and it may have done so.
      if (first->finish == FinishReason::kHandedOff) legs_.arrived_.back().finish.reset();
    }
    return arrival;
  }
  void stop() override {
    if (!std::exchange(stopped_, true) && legs_.port_ != nullptr) legs_.port_->stop(pull_);
    fetch_ = nullptr;
  }

 private:
  HandoffLegs& legs_;
  EngineRequest request_;
  std::shared_ptr<Pull> pull_;
  std::shared_ptr<KvFetch> fetch_;
  bool looked_ = false;  // for what the KV cache has
  bool stopped_ = false;
};

HandoffLegs::HandoffLegs(engine::Engine& engine, HandoffPort& port, Fallback fetch,
                         MakePrefix prefix, Log log)
    : engine_(engine),
      port_(&port),
      fetch_(std::move(fetch)),
      prefix_(std::move(prefix)),
      log_(std::move(log)) {
  engine_.set_leg_sink(this);
}

void HandoffLegs::announce(const EngineRequest& request) {
  prefills_[request.id] = {request.handoff.id, 0};
  port_->announce(request.handoff.id, engine_.description().name);
}

std::shared_ptr<engine::RemotePrefix> HandoffLegs::remote(const EngineRequest& request) {
  return std::make_shared<RemoteLeg>(*this, request);
}

void HandoffLegs::grown(const EngineRequest& request, std::span<const BlockId> blocks,
                        std::uint32_t tokens) {
  const auto leg = prefills_.find(request.id);
  if (leg == prefills_.end()) return;
  const bool is_all = tokens == tokens_of(request);
  const std::uint32_t ready =
      is_all ? static_cast<std::uint32_t>(blocks.size()) : tokens / kBlockTokens;
  const std::uint32_t first = leg->second.published;
  if (ready <= first) return;
  engine::KvPool& pool = engine_.pool();
  std::vector<HandoffBlock> fresh;
  for (const BlockId block : blocks.subspan(first, ready - first)) {
    pool.retain(block);
    fresh.push_back({block.value, pool.generation(block)});
  }
  leg->second.published = ready;
  port_->publish(leg->second.id, first, fresh, is_all ? tokens : ready * kBlockTokens);
}

void HandoffLegs::thrown_out(const EngineRequest& request) {
  const auto leg = prefills_.find(request.id);
  if (leg == prefills_.end() || leg->second.published == 0) return;
  withdraw(request.id, "the prefill leg gave its blocks to others");
}

void HandoffLegs::withdraw(RequestId request, const std::string& why) {
  const auto leg = prefills_.find(request);
  if (leg == prefills_.end()) return;
  port_->withdraw(leg->second.id, why);
  prefills_.erase(leg);
}

void HandoffLegs::tend() {
  news_.store(false, std::memory_order_release);
  for (const std::uint32_t block : port_->take_freed())
    engine_.pool().release(BlockId{block});
}

std::vector<RequestId> HandoffLegs::review(std::vector<EngineOutput>& outputs, std::size_t first) {
  for (std::size_t i = first; i < outputs.size(); ++i) {
    const EngineOutput& output = outputs[i];
    if (!output.finish) continue;
    const auto leg = prefills_.find(output.request);
    if (leg == prefills_.end()) continue;
    switch (*output.finish) {
      case FinishReason::kHandedOff:
      case FinishReason::kStop:
      case FinishReason::kLength:
        port_->close(leg->second.id, output.tokens.empty() ? std::nullopt : std::optional(output));
        prefills_.erase(leg);
        break;
      case FinishReason::kCancelled:
        ended_early(output.request);
        break;
      case FinishReason::kError:
        withdraw(output.request, output.error ? output.error->message : "the prefill leg failed");
        break;
    }
  }
  std::vector<RequestId> over;
  for (const EngineOutput& output : arrived_) {
    if (output.finish) over.push_back(output.request);
  }
  // A request whose last token came from afar has drawn one too many here.
  const auto begin = outputs.begin() + static_cast<std::ptrdiff_t>(first);
  outputs.erase(std::remove_if(begin, outputs.end(),
                               [&](const EngineOutput& o) {
                                 return std::ranges::find(over, o.request) != over.end();
                               }),
                outputs.end());
  outputs.insert(outputs.begin() + static_cast<std::ptrdiff_t>(first),
                 std::make_move_iterator(arrived_.begin()),
                 std::make_move_iterator(arrived_.end()));
  arrived_.clear();
  return over;
}

}  // namespace penstock
