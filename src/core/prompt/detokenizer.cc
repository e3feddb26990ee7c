#include "core/prompt/detokenizer.h"

#include <algorithm>

#include "core/prompt/unicode_utf8.h"

namespace penstock {

// Feeds bytes to the held sequence until it is decided; returns how many were used.
std::size_t Utf8Stream::complete_held(std::string_view bytes, std::string& out) {
  std::size_t used = 0;
  while (held_size_ > 0 && used < bytes.size()) {
    held_[held_size_] = bytes[used];
    const std::string_view candidate(held_.data(), held_size_ + 1);
    const unicode::Sequence sequence = unicode::measure(candidate);
    if (sequence.form == unicode::Form::kIll) {
      // The new byte does not continue it: it is looked at again, on its own.
      out.append(unicode::kReplacement);
      held_size_ = 0;
      break;
    }
    ++used;
    ++held_size_;
    if (sequence.form == unicode::Form::kWell) {
      out.append(candidate);
      held_size_ = 0;
    }
  }
  return used;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  bytes.remove_prefix(complete_held(bytes, out));
  while (!bytes.empty()) {
    const std::size_t good = unicode::well_formed_prefix(bytes);
    out.append(bytes.substr(0, good));
    bytes.remove_prefix(good);
    if (bytes.empty()) return;
    const unicode::Sequence sequence = unicode::measure(bytes);
    if (sequence.form == unicode::Form::kTruncated) {
      std::ranges::copy(bytes, held_.begin());
      held_size_ = bytes.size();
      return;
    }
    out.append(unicode::kReplacement);
    bytes.remove_prefix(sequence.size);
  }
}

void Utf8Stream::finish(std::string& out) {
  if (held_size_ > 0) out.append(unicode::kReplacement);
  held_size_ = 0;
}

void IncrementalDetokenizer::push(TokenId token, std::string& out) {
  if (special_ == Tokenizer::Special::kSkip && tokenizer_->is_special(token)) return;
  stream_.push(tokenizer_->token_bytes(token), out);
}

}  // namespace penstock
