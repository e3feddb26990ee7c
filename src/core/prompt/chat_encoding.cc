#include "core/prompt/chat_encoding.h"

#include <fmt/format.h>
#include <algorithm>

#include "core/prompt/deepseek_encoding.h"
#include "core/prompt/deepseek_tokens.h"
#include "core/prompt/harmony_encoding.h"
#include "core/prompt/llama_encoding.h"
#include "core/prompt/qwen_encoding.h"

namespace penstock::prompt {
namespace {

bool is_deepseek_v3(const HasToken& has_token) {
  return has_token(kBos) && has_token(kUser) && has_token(kAssistant);
}
bool is_deepseek_v4(const HasToken& has_token) {
  return is_deepseek_v3(has_token) && has_token(kDsml) && has_token(kThinkEnd);
}
// A vocabulary may have the mark of system messages and be trained on V4's layout; V4.1's has a
// place for images, too.
bool is_deepseek_v4_1(const HasToken& has_token) {
  return is_deepseek_v4(has_token) && has_token(kSystem) && has_token(kImage);
}

struct Family {
  std::string_view name;
  bool (*fits)(const HasToken&);
  std::unique_ptr<ChatEncoding> (*make)();
};

// The first that fits a vocabulary is the one it uses.
constexpr Family kFamilies[] = {
    {"deepseek_v4_1", is_deepseek_v4_1, make_deepseek_v4_1},
    {"deepseek_v4", is_deepseek_v4, make_deepseek_v4},
    {"deepseek_v3", is_deepseek_v3, make_deepseek_v3},
    // By the model's type: the vocabulary is that of V4.
    {"deepseek_v3_2", [](const HasToken&) { return false; }, make_deepseek_v3_2},
    {"qwen3", is_qwen3, make_qwen3},
    {"llama3_1", is_llama3_1, make_llama3_1},
    {"llama3", is_llama3, make_llama3},
    {"gpt_oss", is_harmony, make_harmony},
};

std::string family_names() {
  std::string names;
  for (const Family& family : kFamilies)
    names += (names.empty() ? "" : ", ") + std::string(family.name);
  return names;
}

}  // namespace

Result<std::string> ChatEncoding::answer_grammar(const Conversation&, const AnswerRules&,
                                                 const TokenIdOf&) const {
  return fail(
      ErrorCode::kUnsupported,
      fmt::format(
          "tool calls of this model's chat encoding ({}) can't be forced or held to a schema",
          name()),
      "tools");
}

Result<std::unique_ptr<ChatEncoding>> detect_chat_encoding(const HasToken& has_token,
                                                           std::string_view model_type) {
  if (model_type == "deepseek_v32" && is_deepseek_v4(has_token)) return make_deepseek_v3_2();
  for (const Family& family : kFamilies) {
    if (family.fits(has_token)) return family.make();
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("the vocabulary's special tokens fit no chat encoding that is built in "
                          "({})",
                          family_names()));
}

Result<std::unique_ptr<ChatEncoding>> make_chat_encoding(std::string_view name) {
  const auto* family = std::ranges::find(kFamilies, name, &Family::name);
  if (family != std::end(kFamilies)) return family->make();
  return fail(ErrorCode::kUnsupported,
              fmt::format("unknown chat encoding '{}'; there are {}", name, family_names()));
}

}  // namespace penstock::prompt
