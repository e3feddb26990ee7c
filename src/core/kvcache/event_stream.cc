#include "core/kvcache/event_stream.h"

namespace penstock::kvcache {

void EventStream::forget() {
  if (last_) ++counts_.purges;
  last_.reset();
}

bool EventStream::connected() {
  live_last_.reset();
  if (can_replay_) {
    // Whether it is the same run shows when the replay begins.
    state_ = State::kWants;
    return false;
  }
  const bool knew = last_.has_value();
  forget();
  return knew;
}

EventStream::Do EventStream::restarted(std::uint64_t sequence, std::uint64_t checksum) {
  ++counts_.restarts;
  forget();
  gap_ = false;
  if (sequence > 0 && can_replay_) {
    state_ = State::kWants;
    return Do::kPurgeAndSkip;
  }
  state_ = State::kFollowing;
  applied(sequence, checksum);
  return Do::kPurge;
}

EventStream::Do EventStream::live(std::uint64_t sequence, std::uint64_t checksum) {
  // One run's numbers only grow.
  const bool back = live_last_ && sequence <= *live_last_;
  live_last_ = sequence;
  if (back) return restarted(sequence, checksum);
  if (state_ != State::kFollowing) return Do::kSkip;
  if (!last_ || sequence == last_->sequence + 1) {
    applied(sequence, checksum);
    return Do::kApply;
  }
  if (sequence <= last_->sequence) return Do::kSkip;  // a replay brought it
  ++counts_.gaps;
  if (can_replay_) {
    gap_ = true;
    state_ = State::kWants;
    return Do::kSkip;
  }
  forget();
  applied(sequence, checksum);
  return Do::kPurge;
}

std::optional<std::uint64_t> EventStream::wanted_replay() const {
  if (state_ != State::kWants) return std::nullopt;
  return last_ ? last_->sequence : 0;
}

EventStream::Do EventStream::replayed(std::uint64_t sequence, std::uint64_t checksum) {
  if (state_ != State::kReplaying) return Do::kSkip;
  const bool first = first_of_replay_;
  first_of_replay_ = false;
  if (first && last_) {
    if (sequence == last_->sequence && checksum == last_->checksum) return Do::kSkip;
    if (sequence == last_->sequence) {
      // Another run: the replay goes on from the middle of it, so it is asked for anew.
      ++counts_.restarts;
      forget();
      state_ = State::kWants;
      return Do::kPurgeAndSkip;
    }
    // The publisher does not keep it any more, so what came between is lost.
    progress_ = true;
    forget();
    applied(sequence, checksum);
    return Do::kPurge;
  }
  if (last_ && sequence <= last_->sequence) return Do::kSkip;
  progress_ = true;
  if (last_ && sequence != last_->sequence + 1) {
    forget();
    applied(sequence, checksum);
    return Do::kPurge;
  }
  applied(sequence, checksum);
  return Do::kApply;
}

bool EventStream::replay_ended() {
  if (state_ != State::kReplaying) return false;
  if (first_of_replay_ && last_) {
    // It does not know the last message: another run, with fewer so far.
    ++counts_.restarts;
    forget();
    state_ = State::kWants;
    return true;
  }
  if (live_last_ && (!last_ || *live_last_ > last_->sequence)) {
    // A live message was passed over while an older replay was on its way.
    if (!progress_) return replay_failed();
    state_ = State::kWants;
    return false;
  }
  state_ = State::kFollowing;
  if (gap_) ++counts_.filled;
  gap_ = false;
  return false;
}

bool EventStream::replay_failed() {
  if (state_ == State::kFollowing) return false;
  state_ = State::kFollowing;
  gap_ = false;
  const bool knew = last_.has_value();
  forget();
  return knew;
}

void EventStream::replay_asked() {
  state_ = State::kReplaying;
  first_of_replay_ = true;
  progress_ = false;
}

void EventStream::lost() {
  forget();
  if (state_ == State::kReplaying) return;
  state_ = State::kFollowing;
}

}  // namespace penstock::kvcache
