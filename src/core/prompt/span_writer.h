// SpanWriter: builds a prompt as spans, joining neighbouring plain text.
// Invariants: no two plain spans in a row, no empty span. Concurrency: one owner.
#pragma once

#include <initializer_list>
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
  // Template text in which each of `tokens` becomes its added token wherever it stands.
  void layout(std::string_view text, std::initializer_list<std::string_view> tokens) {
    while (true) {
      std::size_t at = text.size();
      std::string_view first;
      for (const std::string_view token : tokens) {
        const std::size_t found = text.find(token);
        if (found >= at) continue;
        at = found;
        first = token;
      }
      plain(text.substr(0, at));
      if (first.empty()) return;
      special(first);
      text.remove_prefix(at + first.size());
    }
  }
  std::vector<PromptSpan> take() { return std::move(spans_); }

 private:
  std::vector<PromptSpan> spans_;
};

}  // namespace penstock::prompt
