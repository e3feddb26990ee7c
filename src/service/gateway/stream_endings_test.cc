// Every kind of stream of every API, ended in every way after each of its events: by its end, by a
// client that leaves, by an engine that fails; with one choice and, where the API has them,
// several.
#include <boost/json.hpp>

#include <string>
#include <vector>

#include "core/protocol/chat_fold.h"
#include "core/protocol/completion_fold.h"
#include "core/protocol/messages_fold.h"
#include "core/protocol/responses_fold.h"
#include "tests/support/gateway_rig.h"
#include "tests/support/memory_responses.h"

namespace penstock::gateway {
namespace {

enum class Api { kChat, kCompletions, kResponses, kMessages };

// What the engine says, piece by piece.
struct Script {
  const char* name;
  std::vector<std::string> pieces;
  FinishReason finish;
  bool thinks = false;
  bool calls = false;
};

const std::vector<Script> kScripts = {
    {"text", {"Once upon", " a time", " caf\u00e9."}, FinishReason::kStop},
    {"cut at the limit", {"Once", " upon"}, FinishReason::kLength},
    {"reasoning", {"I think", " so.\n</think>\n", "Yes", "."}, FinishReason::kStop, true},
    {"a stop string", {"One EN", "D two"}, FinishReason::kStop},
    {"text and calls",
     {"I look.",
      "\n\n<\uff5cDSML\uff5ctool_calls>\n<\uff5cDSML\uff5cinvoke "
      "name=\"f\">\n<\uff5cDSML\uff5cparam",
      "eter name=\"a\" string=\"true\">x "
      "y</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n",
      "<\uff5cDSML\uff5cinvoke "
      "name=\"f\">\n</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5ctool_calls>"},
     FinishReason::kStop,
     false,
     true},
};

struct Variant {
  Api api;
  bool two;  // choices
};
constexpr Variant kVariants[] = {{Api::kChat, false},        {Api::kChat, true},
                                 {Api::kCompletions, false}, {Api::kCompletions, true},
                                 {Api::kResponses, false},   {Api::kMessages, false}};

struct EndingsRig : Rig {
  EndingsRig() {
    context.responses = &store;
    context.response_pool = &pool;
  }
  std::shared_ptr<Answered> ask(const Variant& variant, const Script& script) {
    const std::string tools = R"("tools":[{"type":"function",)";
    const std::string function = R"("name":"f","parameters":{"type":"object"})";
    const std::string n = variant.two ? R"(,"n":2)" : "";
    const std::string common = R"({"model":"nano","stream":true,)";
    switch (variant.api) {
      case Api::kChat:
        return send("POST", "/v1/chat/completions",
                    common + R"("stop":["END"],"stream_options":{"include_usage":true},)" +
                        (script.calls ? tools + R"("function":{)" + function + "}}]," : "") +
                        (script.thinks ? R"("thinking":{"type":"enabled"},)" : "") +
                        R"("messages":[{"role":"user","content":"Hi"}])" + n + "}");
      case Api::kCompletions:
        return send("POST", "/v1/completions",
                    common + R"("stop":["END"],"max_tokens":100,"prompt":"Hi")" + n + "}");
      case Api::kResponses:
        return send("POST", "/v1/responses",
                    common + (script.calls ? tools + function + "}]," : "") +
                        (script.thinks ? R"("reasoning":{"effort":"high"},)" : "") +
                        R"("input":"Hi"})");
      case Api::kMessages:
        return send(
            "POST", "/v1/messages",
            common + R"("stop_sequences":["END"],"max_tokens":3000,)" +
                (script.calls ? R"("tools":[{"name":"f","input_schema":{"type":"object"}}],)"
                              : "") +
                (script.thinks ? R"("thinking":{"type":"enabled","budget_tokens":1024},)" : "") +
                R"("messages":[{"role":"user","content":"Hi"}]})");
    }
    return nullptr;
  }
  // The first `count` events of the script, which alternate between the choices. Events behind the
  // end of a choice don't matter.
  void play(const Variant& variant, const Script& script, std::size_t count) {
    const std::size_t choices = variant.two ? 2 : 1;
    for (std::size_t i = 0; i < count && !engines.open().empty(); ++i) {
      const std::size_t piece = i / choices;
      const bool last = piece + 1 == script.pieces.size();
      emit_text(script.pieces[piece],
                last ? std::optional(script.finish) : std::optional<FinishReason>(),
                static_cast<std::uint32_t>(i % choices));
    }
  }
  testing::MemoryResponses store;
};

struct Folded {
  std::string problem;
  bool ended_well = false;   // as an answer that is complete
  bool failed = false;       // with an error the client sees
  std::size_t finishes = 0;  // choices that said how they ended
};

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size())
    ++count;
  return count;
}

Folded fold(Api api, const std::string& body) {
  Folded out;
  out.failed = contains(body, "the kernel broke");
  switch (api) {
    case Api::kChat: {
      // The folder knows no errors: the error is the last event, and the stream ends in it.
      const std::size_t error = body.find("data: {\"error\"");
      const auto folded = protocol::StreamFolder().fold(std::string_view(body).substr(0, error));
      out.ended_well = folded.done;
      out.finishes = count_of(body, R"("finish_reason":")");
      if (folded.done) out.problem = folded.problem;
      if (error != std::string::npos && body.find("\n\n", error) + 2 != body.size())
        out.problem = "an event after the error";
      break;
    }
    case Api::kCompletions: {
      const auto folded = protocol::fold_completion(body);
      out.problem = folded.problem;
      out.ended_well = folded.done;
      out.finishes = count_of(body, R"("finish_reason":")");
      break;
    }
    case Api::kResponses: {
      const auto folded = protocol::ResponseFolder().fold(body);
      out.problem = folded.problem;
      const auto* status = folded.whole.if_contains("status");
      out.ended_well = status != nullptr && (*status == "completed" || *status == "incomplete");
      if (status != nullptr && *status == "failed" && !out.failed) out.problem = "failed silently";
      out.finishes = out.ended_well ? 1 : 0;
      break;
    }
    case Api::kMessages: {
      const auto folded = protocol::MessagesFolder().fold(body);
      out.problem = folded.problem;
      out.ended_well = folded.done;
      out.finishes = folded.done ? 1 : 0;
      break;
    }
  }
  return out;
}

template <typename Test>
void for_each_ending(const Test& test) {
  for (const Variant& variant : kVariants) {
    for (const Script& script : kScripts) {
      const std::string api(1, "CLRM"[static_cast<int>(variant.api)]);
      INFO(api << (variant.two ? ", two choices: " : ": ") << script.name);
      const std::size_t events = script.pieces.size() * (variant.two ? 2 : 1);
      for (std::size_t count = 0; count <= events; ++count) {
        CAPTURE(count);
        EndingsRig rig;
        const auto answer = rig.ask(variant, script);
        rig.play(variant, script, count);
        test(rig, variant, *answer, count, events);
      }
    }
  }
}

}  // namespace

TEST_CASE("streams of every kind in every API: whole, or cut by a client that leaves anywhere") {
  for_each_ending([](EndingsRig& rig, const Variant& variant, Answered& answer, std::size_t count,
                     std::size_t events) {
    if (answer.finished) {
      CHECK(answer.status == 200);
      const Folded folded = fold(variant.api, answer.body);
      CHECK_MESSAGE(folded.problem == "", answer.body);
      CHECK(folded.ended_well);
      CHECK(!folded.failed);
      CHECK(folded.finishes == (variant.two ? 2 : 1));
    } else {
      CHECK(count < events);
      const std::size_t said = answer.body.size();
      answer.refuse_writes = true;
      answer.disconnect();
      rig.clock.run();
      CHECK(rig.last().status == 499);
      CHECK((rig.last().usage.completion_tokens > 0) == (count > 0));
      CHECK(answer.body.size() == said);
      CHECK(!answer.finished);
    }
    CHECK(rig.recorder.records.size() == 1);
    CHECK(rig.engines.open().empty());
    CHECK(rig.gateway.in_flight() == 0);
  });
}

TEST_CASE("streams of every kind in every API end in an error when the engine fails, anywhere") {
  for_each_ending(
      [](EndingsRig& rig, const Variant& variant, Answered& answer, std::size_t, std::size_t) {
        if (answer.finished) return;
        rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
        rig.clock.run();
        REQUIRE(answer.finished);
        CHECK(contains(answer.body, "the kernel broke"));
        if (answer.streamed) {
          CHECK(answer.status == 200);
          const Folded folded = fold(variant.api, answer.body);
          CHECK_MESSAGE(folded.problem == "", answer.body);
          CHECK(folded.failed);
          CHECK(!folded.ended_well);
          CHECK(folded.finishes < (variant.two ? 2 : 1));
        } else {
          CHECK(answer.status == 500);
        }
        CHECK(rig.last().outcome == "internal");
        CHECK(rig.engines.open().empty());
        CHECK(rig.gateway.in_flight() == 0);
      });
}

TEST_CASE("no answer may be kept on its way: whole, streamed, refused or a list") {
  EndingsRig rig;
  const auto holds = [](const Answered& answer, int status) {
    CHECK(answer.status == status);
    CHECK(answer.header("cache-control") == "no-store");
  };
  for (const Variant& variant : kVariants) {
    const auto streamed = rig.ask(variant, kScripts[0]);
    for (std::uint32_t choice = 0; choice < (variant.two ? 2U : 1U); ++choice)
      rig.emit_text("Once", FinishReason::kStop, choice);
    holds(*streamed, 200);
  }
  const std::string hi = R"("messages":[{"role":"user","content":"Hi"}]})";
  const auto whole = [&](const char* path, const std::string& members) {
    const auto answer = rig.send("POST", path, R"({"model":"nano",)" + members);
    rig.emit_text("Once", FinishReason::kStop);
    holds(*answer, 200);
  };
  whole("/v1/chat/completions", hi);
  whole("/v1/completions", R"("prompt":"Hi"})");
  whole("/v1/responses", R"("input":"Hi"})");
  whole("/v1/messages", R"("max_tokens":9,)" + hi);
  holds(*rig.send("POST", "/v1/messages/count_tokens", R"({"model":"nano",)" + hi), 200);
  holds(*rig.send("POST", "/tokenize", R"({"model":"nano","prompt":"Hi"})"), 200);
  holds(*rig.send("GET", "/v1/models"), 200);
  holds(*rig.send("GET", "/v1/responses/resp_1"), 404);
  holds(*rig.send("POST", "/v1/chat/completions", "{"), 400);
  holds(*rig.send("POST", "/v1/messages", "{"), 400);
  holds(*rig.send("GET", "/nowhere"), 404);
  CHECK(rig.engines.open().empty());
}

}  // namespace penstock::gateway
