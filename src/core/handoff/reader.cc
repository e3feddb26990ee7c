#include "core/handoff/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::handoff {

Reader::Reader(Instant now, PullSpec spec, const ReaderOptions& options, Hits& hits)
    : spec_(std::move(spec)), options_(options), hits_(hits) {
  ENSURE(spec_.tokens >= 1 && spec_.layout.sound());
  whole_deadline_ = now + options_.whole;
  phase_deadline_ = now + options_.connect;
  take(Event::kPull);
}

void Reader::opened(Instant now, Effects& effects) {
  if (state_ != State::kConnecting) return;
  take(Event::kOpened);
  phase_deadline_ = now + options_.attach;
  asked_ = now;
  effects.send.push_back(Attach{kProtocolVersion, spec_.id, spec_.pull, spec_.epoch,
                                static_cast<std::uint32_t>(tickets_.size()), spec_.tokens,
                                spec_.model, spec_.layout});
}

void Reader::lost(Instant now, const std::string& why, Effects& effects) {
  if (over()) return;
  cut_ = false;
  ENSURE(reading_.empty());
  if (state_ == State::kConnecting)
    return finish(Event::kUnreachable, Reason::kUnreachable,
                  fmt::format("no connection to the prefill worker: {}", why), effects);
  if (reconnects_ >= options_.reconnects_max)
    return finish(Event::kLost, Reason::kLost,
                  fmt::format("the connection to the prefill worker ended: {}", why), effects);
  ++reconnects_;
  // The close is told again to whom attaches again.
  closed_ = false;
  output_.reset();
  take(Event::kLostOnce);
  phase_deadline_ = now + options_.connect;
  effects.connect = true;
}

void Reader::silent(Effects& effects) {
  if (!attached_or_attaching()) return;
  finish(
      Event::kSilent, Reason::kSilent,
      fmt::format("the prefill worker has said nothing for {} ms",
                  std::chrono::duration_cast<std::chrono::milliseconds>(options_.silent).count()),
      effects);
}

void Reader::attached(const Attached& message, Effects& effects) {
  if (over()) return;
  if (state_ != State::kAttaching) return broken("attached twice", effects);
  pool_ = message.pool;
  lease_ = message.lease;
  lease_end_ = asked_ + lease_;
  asking_ = false;
  if (all_read())
    take(Event::kAttachedClosing);
  else if (done_ < slices_published())
    take(Event::kAttachedPulling);
  else
    take(Event::kAttached);
}

void Reader::renewed(const Renewed& message) {
  if (!asking_ || message.sequence != sequence_) return;
  asking_ = false;
  lease_ = message.lease;
  lease_end_ = std::max(lease_end_, asked_ + lease_);
}

void Reader::part(Part message, Effects& effects) {
  if (over()) return;
  if (state_ != State::kWaiting && state_ != State::kPulling)
    return broken("a part out of turn", effects);
  const std::uint64_t end = std::uint64_t{message.first} + message.blocks.size();
  const std::uint64_t held = std::min<std::uint64_t>(spec_.tokens, end * spec_.layout.block_tokens);
  if (closed_ || message.first != tickets_.size() || message.blocks.empty() || end > blocks() ||
      message.layers != spec_.layout.layers || message.tokens != held)
    return broken(fmt::format("blocks {} to {} with {} layers hold {} tokens, {} tickets and {} "
                              "tokens of {} were expected",
                              message.first, end, message.layers, message.tokens, tickets_.size(),
                              held, spec_.tokens),
                  effects);
  std::ranges::move(message.blocks, std::back_inserter(tickets_));
  take(Event::kPart);
  effects.send.push_back(Ack{spec_.id, spec_.pull, static_cast<std::uint32_t>(tickets_.size())});
}

void Reader::closed(Closed message, Effects& effects) {
  if (over()) return;
  if (!attached_or_attaching() || state_ == State::kAttaching || closed_)
    return broken("closed out of turn", effects);
  if (message.tokens != spec_.tokens || tickets_.size() != blocks())
    return broken(fmt::format("closed with {} tokens in {} blocks, {} tokens were wanted",
                              message.tokens, tickets_.size(), spec_.tokens),
                  effects);
  closed_ = true;
  output_ = std::move(message.output);
  if (state_ == State::kClosing) complete(Event::kClosed, effects);
}

void Reader::ended(const Ended& message, Effects& effects) {
  if (!attached_or_attaching()) return;
  finish(Event::kEnded, message.reason == Reason::kDone ? Reason::kProtocol : message.reason,
         fmt::format("the prefill worker says \"{}\": {}", name(message.reason), message.why),
         effects);
}

void Reader::broken(const std::string& why, Effects& effects) {
  if (!attached_or_attaching()) return;
  finish(Event::kProtocol, Reason::kProtocol,
         fmt::format("the prefill worker breaks the protocol: {}", why), effects);
}

std::optional<SliceRead> Reader::next_read(Instant now) {
  if (state_ != State::kPulling || !spec_.has_room || cut_ || now >= last_start() ||
      reading_.size() >= options_.reads_max)
    return std::nullopt;
  std::uint64_t slice = 0;
  if (!again_.empty()) {
    slice = again_.front();
    again_.pop_front();
  } else if (next_ < slices_published()) {
    slice = next_++;
  } else {
    return std::nullopt;
  }
  reading_.insert(slice);
  const std::uint32_t block_tokens = spec_.layout.block_tokens;
  SliceRead read;
  read.slice = slice;
  read.index = static_cast<std::uint32_t>(slice / spec_.layout.layers);
  read.layer = static_cast<std::uint32_t>(slice % spec_.layout.layers);
  read.pool = pool_;
  read.ticket = &tickets_[read.index];
  read.length = static_cast<std::uint32_t>(
      spec_.layout.row_bytes() *
      std::min<std::uint64_t>(block_tokens,
                              spec_.tokens - std::uint64_t{read.index} * block_tokens));
  read.deadline = std::min({now + options_.read, lease_end_, whole_deadline_});
  return read;
}

void Reader::read_ended(std::uint64_t slice, SliceEnd end, Effects& effects) {
  if (over()) return;
  ENSURE(reading_.erase(slice) == 1);
  const std::uint32_t layers = spec_.layout.layers;
  const auto where = [&](const char* what) {
    return fmt::format("layer {} of block {}: {}", slice % layers, slice / layers, what);
  };
  // lost() follows, and decides.
  if (end == SliceEnd::kGone) {
    cut_ = true;
    again_.push_back(slice);
    return;
  }
  ENSURE(state_ == State::kPulling);
  switch (end) {
    case SliceEnd::kGone:
      return;
    case SliceEnd::kStale:
      return finish(Event::kStale, Reason::kStale,
                    where("its owner has used the block for something else"), effects);
    case SliceEnd::kRefused:
      return finish(Event::kForbidden, Reason::kForbidden,
                    where("the prefill worker refused the read"), effects);
    case SliceEnd::kDeadline:
      return finish(Event::kSlowRead, Reason::kSlowRead, where("not read in time"), effects);
    case SliceEnd::kCorrupt:
      ++corrupt_;
      if (!retried_.insert(slice).second)
        return finish(Event::kCorrupt, Reason::kCorrupt,
                      where("the bytes don't match the checksum, twice"), effects);
      again_.push_back(slice);
      take(Event::kRetry);
      return;
    case SliceEnd::kDone:
      break;
  }
  ++done_;
  if (all_read())
    closed_ ? complete(Event::kFinish, effects) : take(Event::kAllRead);
  else if (done_ == slices_published())
    take(Event::kDrained);
}

void Reader::stop(Effects& effects) {
  if (over()) return;
  finish(Event::kStop, Reason::kStopped, "stopped", effects);
}

void Reader::tick(Instant now, Effects& effects) {
  if (over()) return;
  const auto late = [&](const char* what) {
    finish(Event::kDeadline, Reason::kDeadline, what, effects);
  };
  if (now >= whole_deadline_) return late("the pull took too long");
  if (state_ == State::kConnecting || state_ == State::kAttaching) {
    if (now >= phase_deadline_)
      late(state_ == State::kConnecting ? "no connection to the prefill worker in time"
                                        : "the prefill worker did not answer in time");
    return;
  }
  if (now >= last_start())
    return finish(Event::kLease, Reason::kLease, "the lease was not renewed in time", effects);
  if (!asking_ && now >= lease_end_ - lease_ + lease_ / 3) {
    asking_ = true;
    asked_ = now;
    effects.send.push_back(Renew{spec_.id, spec_.pull, ++sequence_});
  }
}

void Reader::finish(Event event, Reason reason, std::string why, Effects& effects) {
  const bool told = attached_or_attaching() && event != Event::kLost;
  take(event);
  reason_ = reason;
  why_ = std::move(why);
  output_.reset();
  effects.over = true;
  effects.connect = false;
  if (told) effects.send.push_back(Release{spec_.id, spec_.pull, reason});
}

void Reader::complete(Event event, Effects& effects) {
  take(event);
  effects.over = true;
  effects.send.push_back(Release{spec_.id, spec_.pull, Reason::kDone});
}

}  // namespace penstock::handoff
