#include "io/control/pending_frame.h"

namespace penstock::control {
namespace {

// Bytes at most of an output's fixed fields, of a varint token, and of a token with its logprob and
// count; an alternative is a token and a float.
constexpr std::size_t kOutputBytes = 64;
constexpr std::size_t kTokenBytes = 5;
constexpr std::size_t kLogprobBytes = 9;

std::size_t bytes_of(const EngineOutput& output, bool has_logprobs) {
  std::size_t bytes = kOutputBytes + output.tokens.size() * kTokenBytes;
  if (has_logprobs) {
    for (const OutputToken& token : output.tokens) {
      bytes += kLogprobBytes * (1 + token.top.size());
    }
  }
  if (output.error) bytes += output.error->message.size() + output.error->field.size();
  return bytes;
}

}  // namespace

void PendingFrame::add(const EngineOutput& output, bool has_logprobs) {
  due_ = true;
  bytes_ += bytes_of(output, has_logprobs);
  const auto [place, is_new] =
      places_.try_emplace({output.request.value, output.choice}, frame_.outputs_size());
  // A finished output is closed: what follows belongs to a request that uses the number again.
  if (!is_new && frame_.outputs(place->second).finish() == wire::FINISH_NONE) {
    append(output, has_logprobs, *frame_.mutable_outputs(place->second));
    return;
  }
  place->second = frame_.outputs_size();
  append(output, has_logprobs, *frame_.add_outputs());
}

void PendingFrame::add(wire::ExpertAnswer answer) {
  due_ = true;
  bytes_ += answer.ByteSizeLong() + kOutputBytes;
  *frame_.add_expert_answers() = std::move(answer);
}

void PendingFrame::take(wire::WorkerFrame& out) {
  out.Clear();
  out.Swap(&frame_);
  places_.clear();
  bytes_ = 0;
  due_ = false;
}

}  // namespace penstock::control
