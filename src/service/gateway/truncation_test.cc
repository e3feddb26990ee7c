#include "service/gateway/truncation.h"

#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "core/protocol/responses_fold.h"
#include "tests/support/gateway_rig.h"

namespace penstock::gateway {
namespace {

// A message a letter: s(ystem), d(eveloper), u(ser), a(ssistant), t(ool).
Conversation conversation_of(std::string_view roles) {
  Conversation out;
  for (const char role : roles) {
    Message message;
    message.role = static_cast<Role>(std::string_view("sduat").find(role));
    message.text = std::string(1, role) + std::to_string(out.messages.size());
    out.messages.push_back(std::move(message));
  }
  return out;
}

std::string steps_of(std::string_view roles) {
  const Conversation conversation = conversation_of(roles);
  const Truncation ways(conversation);
  std::string out;
  for (std::size_t steps = 1; steps <= ways.steps(); ++steps) {
    if (steps > 1) out += ' ';
    const Conversation left = ways.after(steps);
    CHECK(left.messages.size() + ways.dropped(steps) == roles.size());
    for (const Message& message : left.messages)
      out += message.text;
  }
  return out;
}

}  // namespace

TEST_CASE("the oldest turns go first, then the oldest answers of the last; pairs stay together") {
  CHECK(steps_of("u") == "");
  CHECK(steps_of("su") == "");
  CHECK(steps_of("s") == "");
  CHECK(steps_of("sua") == "");
  CHECK(steps_of("suauau") == "s0u3a4u5 s0u5");
  CHECK(steps_of("uatsu") == "s3u4");
  CHECK(steps_of("auau") == "u1a2u3 u3");
  CHECK(steps_of("suauatatat") == "s0u3a4t5a6t7a8t9 s0u3a6t7a8t9 s0u3a8t9");
  CHECK(steps_of("uattattu") == "u7");
  CHECK(steps_of("dudu") == "d0d2u3");
  CHECK(steps_of("uu") == "u1");
}

TEST_CASE("a response with truncation auto drops what doesn't fit, and no more") {
  Rig rig;
  std::string words;
  for (int i = 0; i < 700; ++i)
    words += " 7";  // two tokens each at least
  const auto ask = [&](int turns, const std::string& more, const std::string& last = "Now?") {
    std::string input = R"([{"role":"system","content":"Be brief."})";
    for (int i = 0; i < turns; ++i)
      input += R"(,{"role":"user","content":"Q)" + std::to_string(i) + words +
               R"("},{"role":"assistant","content":"A)" + std::to_string(i) + "\"}";
    input += R"(,{"role":"user","content":")" + last + "\"}]";
    return rig.send("POST", "/v1/responses",
                    R"({"model":"nano","store":false,"input":)" + input + more + "}");
  };
  const auto refused = ask(9, "");
  CHECK(refused->status == 400);
  CHECK(contains(refused->body, "context_length_exceeded"));
  std::size_t before = 0;
  for (const std::string room : {R"(,"max_output_tokens":2000)", R"(,"max_output_tokens":100)"}) {
    const auto answer = ask(9, room + R"(,"truncation":"auto")");
    REQUIRE(rig.engines.open().size() == 1);
    const std::vector<TokenId> prompt = *rig.engines.open()[0].request.prompt;
    const std::string text = nano_tokenizer()->decode(prompt, Tokenizer::Special::kKeep);
    CHECK(prompt.size() + rig.engines.open()[0].request.sampling.max_tokens <= 4096);
    CHECK(prompt.size() > before);  // as much as there is room for
    before = prompt.size();
    CHECK(contains(text, "Be brief."));
    CHECK(contains(text, "A8"));
    CHECK(contains(text, "Now?"));
    CHECK(!contains(text, "Q0"));
    rig.emit_text("Yes.", FinishReason::kStop);
    CHECK(answer->status == 200);
    CHECK(contains(answer->body, R"("truncation":"auto")"));
    CHECK(rig.last().usage.prompt_tokens == prompt.size());
    CHECK(contains(rig.last().placement, "old messages to fit"));
  }
  // What fits is left alone; what can't fit is refused.
  ask(1, R"(,"truncation":"auto")");
  REQUIRE(rig.engines.open().size() == 1);
  CHECK(contains(
      nano_tokenizer()->decode(*rig.engines.open()[0].request.prompt, Tokenizer::Special::kKeep),
      "Q0"));
  rig.emit_text("Yes.", FinishReason::kStop);
  CHECK(!contains(rig.last().placement, "to fit"));
  std::string long_question = words;
  for (int i = 0; i < 5; ++i)
    long_question += words;
  const auto hopeless = ask(2, R"(,"truncation":"auto")", long_question);
  CHECK(hopeless->status == 400);
  CHECK(contains(hopeless->body, "context_length_exceeded"));
  CHECK(rig.engines.open().empty());
}

}  // namespace penstock::gateway
