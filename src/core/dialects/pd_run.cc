#include "core/dialects/pd_run.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::dialects {

using enum PdAction;

PdRun::Actions PdRun::begin(Instant now) {
  ENSURE(state_ == State::kNew && protocol_ != PdProtocol::kNone);
  prefill_runs_ = true;
  prefills_ = 1;
  deadline_ = now + limits_.prefill_max;
  if (protocol_ == PdProtocol::kSerial) {
    state_ = State::kPrefill;
    return {kSendPrefill};
  }
  state_ = State::kBoth;
  decode_runs_ = true;
  return {kSendPrefill, kSendDecode};
}

PdRun::Actions PdRun::prefill_done(Instant now, bool has_params,
                                   std::optional<Duration> expires_in) {
  if (over() || !std::exchange(prefill_runs_, false)) return {};
  if (state_ == State::kBoth) {
    state_ = State::kDecode;
    held_ = has_params && !took_;
    deadline_ = first_token_ ? Instant::max() : now + limits_.first_token_max;
    return {};
  }
  usable_until_.reset();
  if (has_params) {
    const Duration lease = std::min(limits_.lease, expires_in.value_or(limits_.lease));
    usable_until_ = now + lease - limits_.margin;
  }
  held_ = has_params;
  return send_decode(now);
}

bool PdRun::params_usable(Instant now) const {
  return usable_until_ && now < *usable_until_;
}

PdRun::Actions PdRun::send_decode(Instant now) {
  state_ = State::kDecode;
  decode_runs_ = true;
  deadline_ = now + limits_.first_token_max;
  if (params_usable(now)) return {kSendDecode};
  usable_until_.reset();
  held_ = false;  // the lease ends before anybody could release them
  return {kSendDecodePlain};
}

PdRun::Actions PdRun::params_expired(Instant now) {
  if (state_ != State::kDecode || first_token_ || !usable_until_) return {};
  usable_until_.reset();
  return send_decode(now);
}

PdRun::Actions PdRun::prefill_failed(Instant now, bool may_retry) {
  if (over() || !std::exchange(prefill_runs_, false)) return {};
  usable_until_.reset();
  if (state_ == State::kPrefill && may_retry && prefills_ < limits_.prefill_tries) {
    ++prefills_;
    prefill_runs_ = true;
    deadline_ = now + limits_.prefill_max;
    return {kSendPrefill};
  }
  return end(State::kFailed, "the prefill engine failed");
}

PdRun::Actions PdRun::decode_took(Instant) {
  if (over() || !decode_runs_) return {};
  took_ = true;
  held_ = false;
  return {};
}

PdRun::Actions PdRun::decode_first_token(Instant) {
  if (over() || !decode_runs_) return {};
  first_token_ = took_ = true;
  // It has fetched the blocks: there is nothing left that could run out.
  usable_until_.reset();
  held_ = false;
  if (!prefill_runs_) deadline_ = Instant::max();
  return {};
}

PdRun::Actions PdRun::decode_done(Instant) {
  if (over() || !std::exchange(decode_runs_, false)) return {};
  held_ = false;
  return end(State::kDone, "");
}

PdRun::Actions PdRun::decode_failed(Instant) {
  if (over() || !std::exchange(decode_runs_, false)) return {};
  return end(State::kFailed, "the decode engine failed");
}

PdRun::Actions PdRun::client_gone(Instant) {
  if (over()) return {};
  return end(State::kFailed, "the client went away");
}

PdRun::Actions PdRun::deadline(Instant now) {
  if (over() || now < deadline_) return {};
  return end(State::kFailed, prefill_runs_ ? "the prefill engine took too long"
                                           : "the decode engine took too long");
}

PdRun::Actions PdRun::end(State state, const char* why) {
  Actions actions;
  if (std::exchange(prefill_runs_, false)) actions.push_back(kCancelPrefill);
  if (std::exchange(decode_runs_, false)) actions.push_back(kCancelDecode);
  if (std::exchange(held_, false)) actions.push_back(kRelease);
  usable_until_.reset();
  state_ = state;
  deadline_ = Instant::max();
  failure_ = why;
  actions.push_back(state == State::kDone ? kFinish : kFail);
  return actions;
}

}  // namespace penstock::dialects
