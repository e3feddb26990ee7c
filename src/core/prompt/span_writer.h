// SpanWriter: builds a prompt as spans, joining neighbouring plain text.
// Invariants: no two plain spans in a row, no empty span. Concurrency: one owner.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "domain/tokens.h"

namespace penstock::prompt {

class SpanWriter {
 public:
  void plain(std::string_view text) {
    if (text.empty()) return;
    if (!spans_.empty() && spans_.back().kind == SpanKind::kPlain) {
      spans_.back().text += text;
    } else {
      spans_.push_back({SpanKind::kPlain, std::string(text)});
    }
  }
  void special(std::string_view token) {
    spans_.push_back({SpanKind::kSpecial, std::string(token)});
  }
  // Template text with one added token in it at every place where `token` stands.
  void layout(std::string_view text, std::string_view token) {
    while (true) {
      const std::size_t at = text.find(token);
      plain(text.substr(0, at));
      if (at == std::string_view::npos) return;
      special(token);
      text.remove_prefix(at + token.size());
    }
  }
  std::vector<PromptSpan> take() { return std::move(spans_); }

 private:
  std::vector<PromptSpan> spans_;
};

}  // namespace penstock::prompt
