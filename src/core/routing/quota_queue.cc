#include "core/routing/quota_queue.h"

#include <algorithm>

namespace penstock::routing {

bool QuotaQueue::remove(RequestId id) {
  const auto at = std::ranges::find(queue_, id, &QueuedPrompt::id);
  if (at == queue_.end()) return false;
  queue_.erase(at);
  return true;
}

void QuotaQueue::next_chunk(const PrefillCoefficients& cost, double budget_seconds,
                            std::int64_t tokens_max, Chunk& out) {
  out.parts.clear();
  out.seconds = 0;
  // Parts share one base cost.
  PrefillCoefficients marginal = cost;
  marginal.base = 0;
  double left = budget_seconds - cost.base;
  std::int64_t tokens_left = std::max<std::int64_t>(tokens_max, 1);
  while (!queue_.empty() && tokens_left > 0) {
    QueuedPrompt& prompt = queue_.front();
    const std::int64_t most = std::min(prompt.fresh, tokens_left);
    std::int64_t n = chunk_within(marginal, prompt.context, left, most);
    if (out.parts.empty()) n = std::max(n, std::min<std::int64_t>(most, 1));
    if (n == 0 && prompt.fresh > 0) break;
    const double seconds =
        prefill_seconds(marginal, static_cast<double>(n), static_cast<double>(prompt.context));
    out.parts.push_back({prompt.id, prompt.context, n, n == prompt.fresh});
    out.seconds += seconds;
    left -= seconds;
    tokens_left -= n;
    prompt.context += n;
    prompt.fresh -= n;
    if (prompt.fresh > 0) break;  // FIFO: nobody overtakes
    queue_.pop_front();
  }
  if (!out.parts.empty()) out.seconds += cost.base;
}

double QuotaQueue::outstanding_seconds(const PrefillCoefficients& cost) const {
  double seconds = 0;
  for (const QueuedPrompt& prompt : queue_)
    seconds += prefill_seconds(cost, static_cast<double>(prompt.fresh),
                               static_cast<double>(prompt.context));
  return seconds;
}

std::int64_t QuotaQueue::outstanding_tokens() const {
  std::int64_t tokens = 0;
  for (const QueuedPrompt& prompt : queue_)
    tokens += prompt.fresh;
  return tokens;
}

}  // namespace penstock::routing
