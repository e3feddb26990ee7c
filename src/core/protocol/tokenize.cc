#include "core/protocol/tokenize.h"

#include <limits>

#include "core/protocol/json_fields.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {

Result<TokenizeRequest> parse_tokenize_request(std::string_view body, const ChatLimits& limits) {
  TokenizeRequest request;
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  const auto prompt = optional_member(root, "prompt");
  if (!prompt) {
    TRY(request.chat, parse_chat_request(body, limits));
    return request;
  }
  if (const auto messages = optional_member(root, "messages")) {
    return invalid_value(messages, "send either a prompt or messages");
  }
  TRY_STATUS(read_model(root, request.chat));
  TRY(request.text, read_string(prompt));
  if (const auto special = optional_member(root, "add_special_tokens")) {
    TRY(const bool wanted, read_bool(special));
    if (wanted) return unsupported(special, "is not supported here; a prompt is encoded as it is");
  }
  return request;
}

std::string tokenize_answer(std::span<const TokenId> tokens) {
  std::string out = R"({"count":)";
  append_json_number(out, std::uint64_t{tokens.size()});
  out += R"(,"tokens":[)";
  for (const TokenId token : tokens) {
    if (out.back() != '[') out += ',';
    append_json_number(out, std::uint64_t{token});
  }
  out += "]}";
  return out;
}

Result<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                   const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  ChatRequest identity;
  TRY_STATUS(read_model(root, identity));
  DetokenizeRequest request{std::move(identity.model), {}};
  TRY(const auto tokens, required_member(root, "tokens"));
  TRY_STATUS(expect_array(tokens));
  for (auto token = tokens.first_child(); token; token = token.next_sibling()) {
    TRY(const auto id, read_integer(token, {0, std::numeric_limits<TokenId>::max()}));
    request.tokens.push_back(static_cast<TokenId>(id));
  }
  return request;
}

std::string detokenize_answer(std::string_view text) {
  std::string out = R"({"prompt":)";
  append_json_string(out, text);
  out += '}';
  return out;
}

}  // namespace penstock::protocol
