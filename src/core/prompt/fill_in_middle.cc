#include "core/prompt/fill_in_middle.h"

#include <algorithm>

#include "core/prompt/span_writer.h"

namespace penstock::prompt {
namespace {

struct Marks {
  std::string_view begin;
  std::string_view hole;
  std::string_view end;
};
constexpr Marks kMarks[] = {
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder
};

}  // namespace

std::optional<std::vector<PromptSpan>> fill_in_middle(const HasToken& has_token,
                                                      std::string_view before,
                                                      std::string_view behind) {
  const auto* const marks = std::ranges::find_if(kMarks, [&](const Marks& m) {
    return has_token(m.begin) && has_token(m.hole) && has_token(m.end);
  });
  if (marks == std::end(kMarks)) return std::nullopt;
  SpanWriter spans;
  spans.special(marks->begin);
  spans.plain(before);
  spans.special(marks->hole);
  spans.plain(behind);
  spans.special(marks->end);
  return spans.take();
}

}  // namespace penstock::prompt
