#include "app/scripted_engine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/json/parse.hpp>

#include "core/prompt/tokenizer.h"
#include "engine/testing/random_checkpoint.h"
#include "io/files/files.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr Bytes kConfigMax{1 << 20};
constexpr std::uint32_t kContext = 1U << 20;
constexpr std::size_t kRepliesMax = 10'000;
constexpr float kChosen = 1000.0F;  // no penalty or bias comes near

struct Reply {
  std::vector<std::string> when;
  std::vector<std::string> unless;
  std::vector<TokenId> tokens;            // the end token last
  std::vector<TokenId> tokens_reasoning;  // where the prompt ends with the model's reasoning begun
  std::size_t fail_after = std::numeric_limits<std::size_t>::max();

  bool fits(std::string_view prompt) const {
    const auto in_prompt = [&](const std::string& text) { return prompt.contains(text); };
    return std::ranges::all_of(when, in_prompt) && std::ranges::none_of(unless, in_prompt);
  }
};

std::unexpected<Error> bad(std::string where, std::string what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("the script's {} {}", where, what),
              std::move(where));
}

Result<std::vector<std::string>> texts(const json::object& object, std::string_view key,
                                       const std::string& where) {
  std::vector<std::string> out;
  const json::value* const value = object.if_contains(key);
  if (value == nullptr) return out;
  if (value->is_string()) return std::vector{std::string(value->get_string())};
  if (!value->is_array()) return bad(where + "." + std::string(key), "is no text and no list");
  for (const json::value& each : value->get_array()) {
    if (!each.is_string()) return bad(where + "." + std::string(key), "holds what is no text");
    out.emplace_back(each.get_string());
  }
  return out;
}

Result<Reply> read_reply(const json::value& value, const std::string& where,
                         const Tokenizer& tokenizer, TokenId end) {
  if (!value.is_object()) return bad(where, "is no object");
  const json::object& object = value.get_object();
  constexpr std::array<std::string_view, 5> kKeys = {"when", "unless", "think", "say",
                                                     "fail_after"};
  for (const auto& member : object) {
    if (std::ranges::find(kKeys, std::string_view(member.key())) == kKeys.end())
      return bad(where, fmt::format("has a key \"{}\"; there are {}",
                                    std::string_view(member.key()), fmt::join(kKeys, ", ")));
  }
  Reply reply;
  TRY(reply.when, texts(object, "when", where));
  TRY(reply.unless, texts(object, "unless", where));
  const json::value* const say = object.if_contains("say");
  if (say == nullptr || !say->is_string()) return bad(where + ".say", "is missing or no text");
  TRY(const auto thoughts, texts(object, "think", where));
  const std::string text(say->get_string());
  for (auto& [tokens, whole] :
       {std::pair(&reply.tokens, text),
        std::pair(&reply.tokens_reasoning,
                  fmt::format("{}</think>{}", fmt::join(thoughts, ""), text))}) {
    TRY_STATUS(tokenizer.encode_with_added_tokens(whole, *tokens));
    tokens->push_back(end);
  }
  if (const json::value* const after = object.if_contains("fail_after")) {
    boost::system::error_code error;
    reply.fail_after = after->to_number<std::uint32_t>(error);
    if (error) return bad(where + ".fail_after", "is no number of tokens");
  }
  return reply;
}

class Script {
 public:
  static Result<Script> parse(std::string_view text, std::unique_ptr<Tokenizer> tokenizer,
                              TokenId end) {
    boost::system::error_code error;
    const json::value value = json::parse(text, error);
    if (error) return bad("text", "is not JSON: " + error.message());
    const json::value* const replies =
        value.is_object() ? value.get_object().if_contains("replies") : nullptr;
    if (replies == nullptr || !replies->is_array() || replies->get_array().empty())
      return bad("replies", "are missing, empty or no list");
    if (replies->get_array().size() > kRepliesMax)
      return bad("replies", fmt::format("are more than {}", kRepliesMax));
    Script script;
    script.tokenizer_ = std::move(tokenizer);
    for (const json::value& each : replies->get_array()) {
      const std::string where = fmt::format("replies[{}]", script.replies_.size());
      TRY(Reply reply, read_reply(each, where, *script.tokenizer_, end));
      script.replies_.push_back(std::move(reply));
    }
    return script;
  }

  // Makes the script's next token the likeliest one.
  void edit(const TokenIds& prompt, std::span<const TokenId> generated, std::span<float> logits) {
    const Known& known = reply_to(prompt);
    if (known.reply == nullptr) return;
    if (generated.size() >= known.reply->fail_after) {
      std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const auto& tokens = known.reasons ? known.reply->tokens_reasoning : known.reply->tokens;
    logits[tokens[std::min(generated.size(), tokens.size() - 1)]] = kChosen;
  }

 private:
  struct Known {
    TokenIds prompt;  // holds it, so that no other gets its address
    const Reply* reply = nullptr;
    bool reasons = false;
  };
  const Known& reply_to(const TokenIds& prompt) {
    const auto known = std::ranges::find(lately_, prompt, &Known::prompt);
    if (known != lately_.end()) return *known;
    const std::string text = tokenizer_->decode(*prompt, Tokenizer::Special::kKeep);
    const auto fitting =
        std::ranges::find_if(replies_, [&](const Reply& each) { return each.fits(text); });
    const std::size_t end = text.find_last_not_of('\n') + 1;
    return lately_[next_++ % lately_.size()] = {
               prompt, fitting == replies_.end() ? nullptr : &*fitting,
               std::string_view(text).substr(0, end).ends_with("<think>")};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Reply> replies_;
  std::array<Known, 256> lately_{};
  std::size_t next_ = 0;
};

// What a script needs of a checkpoint's config.json.
struct Vocabulary {
  std::uint32_t size = 0;
  TokenId end = 0;
};

Result<Vocabulary> read_vocabulary(const std::string& folder) {
  const std::string path = folder + "/config.json";
  TRY(const std::string text, read_file(path, kConfigMax));
  boost::system::error_code error;
  const json::value config = json::parse(text, error);
  if (error || !config.is_object())
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is no JSON object", path));
  const auto number = [&](std::string_view key) -> std::optional<std::uint32_t> {
    const json::value* value = config.get_object().if_contains(key);
    if (value != nullptr && value->is_array() && !value->get_array().empty())
      value = &value->get_array()[0];
    boost::system::error_code no_number;
    const auto n = value == nullptr ? 0 : value->to_number<std::uint32_t>(no_number);
    return value == nullptr || no_number ? std::nullopt : std::optional(n);
  };
  const auto size = number("vocab_size");
  const auto end = number("eos_token_id");
  if (!size || !end || *end >= *size || *size > Tokenizer::kTokenIdLimit)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} has no possible vocab_size and eos_token_id", path));
  return Vocabulary{*size, *end};
}

engine::CheckpointShape tiny_shape(const Vocabulary& vocabulary) {
  engine::CheckpointShape shape;
  shape.vocab_size = vocabulary.size;
  shape.hidden_size = 16;
  shape.layers = 1;
  shape.heads = 1;
  shape.kv_lora_rank = 8;
  shape.nope_width = 8;
  shape.rope_width = 8;
  shape.value_width = 8;
  shape.dense_width = 16;
  shape.experts = 0;
  shape.shared_experts = 0;
  shape.context_length = kContext;
  shape.eos = {vocabulary.end};
  return shape;
}

}  // namespace

Result<std::unique_ptr<engine::Engine>> open_scripted_engine(engine::EngineOptions options,
                                                             std::string_view script) {
  TRY(const Vocabulary vocabulary, read_vocabulary(options.checkpoint_dir));
  TRY(const std::string json,
      read_file(options.checkpoint_dir + "/tokenizer.json", Bytes(Tokenizer::kJsonBytesMax)));
  TRY(auto tokenizer, Tokenizer::from_json(json));
  if (tokenizer->vocab_size() > vocabulary.size)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: the tokenizer has {} ids, more than config.json's vocab_size {}",
                            options.checkpoint_dir, tokenizer->vocab_size(), vocabulary.size));
  TRY(Script parsed, Script::parse(script, std::move(tokenizer), vocabulary.end));
  const engine::TemporaryFolder weights;  // read at once
  TRY_STATUS(engine::write_checkpoint(weights.path(), tiny_shape(vocabulary), 1));
  options.checkpoint_dir = weights.path();
  TRY(auto opened, engine::Engine::open(std::move(options)));
  opened->set_logits_editor(
      [script = std::make_shared<Script>(std::move(parsed))](
          const EngineRequest& request, std::span<const TokenId> generated,
          std::span<float> logits) { script->edit(request.prompt, generated, logits); });
  return opened;
}

}  // namespace penstock
