// What a script makes the engine say, and what is wrong with a script.
#include "app/scripted_engine.h"

#include "core/prompt/tokenizer.h"
#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

constexpr const char* kNano = "models/nano";

std::unique_ptr<Tokenizer> nano_tokenizer() {
  const auto json =
      read_file(std::string(kNano) + "/tokenizer.json", Bytes(Tokenizer::kJsonBytesMax));
  return std::move(*Tokenizer::from_json(*json));
}

Result<std::unique_ptr<engine::Engine>> open(std::string_view script) {
  engine::EngineOptions options;
  options.checkpoint_dir = kNano;
  options.model_name = "nano";
  options.threads = 1;
  options.kv_blocks = 64;
  options.context_length = 2048;
  return open_scripted_engine(std::move(options), script);
}

struct Said {
  std::string text;
  std::optional<FinishReason> finish;
};

Said ask(engine::Engine& engine, const Tokenizer& tokenizer, std::string_view prompt,
         float temperature = 0) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.encode_with_added_tokens(prompt, ids));
  EngineRequest request;
  request.id = RequestId(1);
  request.prompt = std::make_shared<const std::vector<TokenId>>(std::move(ids));
  request.sampling.max_tokens = 100;
  request.sampling.temperature = temperature;
  REQUIRE(engine.submit(std::move(request)));
  std::vector<TokenId> tokens;
  Said said;
  while (engine.has_work()) {
    for (const EngineOutput& output : engine.step().outputs) {
      for (const OutputToken& token : output.tokens)
        tokens.push_back(token.token);
      if (output.finish) said.finish = output.finish;
    }
  }
  said.text = tokenizer.decode(tokens, Tokenizer::Special::kSkip);
  return said;
}

}  // namespace

TEST_CASE("the first reply that fits the prompt is said, greedy and sampled") {
  const auto tokenizer = nano_tokenizer();
  auto engine = open(R"({"replies": [
      {"when": ["tide", "moon"], "say": "Both."},
      {"when": "tide", "unless": "sun", "say": "The tide turns at 6:40."},
      {"say": "What else? "}]})");
  REQUIRE(engine);
  for (const float temperature : {0.0F, 1.5F}) {
    CHECK(ask(**engine, *tokenizer, "moon and tide", temperature).text == "Both.");
    const Said said = ask(**engine, *tokenizer, "the tide", temperature);
    CHECK(said.text == "The tide turns at 6:40.");
    CHECK(said.finish == FinishReason::kStop);
    CHECK(ask(**engine, *tokenizer, "tide, sun", temperature).text == "What else? ");
  }
}

TEST_CASE("where the model is to reason it reasons first") {
  const auto tokenizer = nano_tokenizer();
  auto engine = open(R"({"replies": [{"when": "tide", "think": "Hm.", "say": "At 6:40."},
                                     {"say": "What?"}]})");
  REQUIRE(engine);
  CHECK(ask(**engine, *tokenizer, "tide").text == "At 6:40.");
  CHECK(ask(**engine, *tokenizer, "tide<think>").text == "Hm.</think>At 6:40.");
  CHECK(ask(**engine, *tokenizer, "<think>\n").text == "</think>What?");
}

TEST_CASE("without a reply that fits the tokens are random, and an engine may fail on purpose") {
  const auto tokenizer = nano_tokenizer();
  auto engine = open(R"({"replies": [{"when": "x", "say": "one two three", "fail_after": 2}]})");
  REQUIRE(engine);
  CHECK(ask(**engine, *tokenizer, "hello").finish.has_value());
  const Said failed = ask(**engine, *tokenizer, "x");
  CHECK(failed.finish == FinishReason::kError);
  CHECK(std::string_view("one two three").starts_with(failed.text));
  CHECK_FALSE(failed.text.empty());
}

TEST_CASE("a script that can't be meant is refused with the place") {
  const auto message = [](std::string_view script) {
    const auto engine = open(script);
    REQUIRE_FALSE(engine);
    CHECK(engine.error().code == ErrorCode::kInvalidArgument);
    return engine.error().message;
  };
  CHECK(message("{").contains("is not JSON"));
  CHECK(message("[]").contains("replies"));
  CHECK(message(R"({"replies": []})").contains("replies"));
  CHECK(message(R"({"replies": [{"when": "a"}]})").contains("replies[0].say"));
  CHECK(message(R"({"replies": [{"say": "a"}, {"say": "b", "wen": "c"}]})").contains("\"wen\""));
  CHECK(message(R"({"replies": [{"say": "a", "when": [1]}]})").contains("replies[0].when"));
  CHECK(message(R"({"replies": [{"say": "a", "fail_after": -1}]})").contains("fail_after"));
}

}  // namespace penstock
