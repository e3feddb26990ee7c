#include "core/prompt/chat_encoding.h"

#include <fmt/format.h>

#include "core/prompt/deepseek_encoding.h"
#include "core/prompt/deepseek_tokens.h"

namespace penstock::prompt {

Result<std::unique_ptr<ChatEncoding>> detect_chat_encoding(const HasToken& has_token) {
  const bool deepseek = has_token(kBos) && has_token(kUser) && has_token(kAssistant);
  if (deepseek && has_token(kDsml) && has_token(kThinkEnd)) return make_deepseek_v4();
  if (deepseek) return make_deepseek_v3();
  return fail(ErrorCode::kUnsupported,
              "the vocabulary's special tokens fit no chat encoding that is built in "
              "(deepseek_v3, deepseek_v4)");
}

Result<std::unique_ptr<ChatEncoding>> make_chat_encoding(std::string_view name) {
  if (name == "deepseek_v3") return make_deepseek_v3();
  if (name == "deepseek_v4") return make_deepseek_v4();
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("unknown chat encoding '{}'; there are deepseek_v3 and deepseek_v4", name));
}

}  // namespace penstock::prompt
