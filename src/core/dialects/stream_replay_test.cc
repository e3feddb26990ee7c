#include "core/dialects/stream_replay.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/dialects/json_values.h"

#include <doctest/doctest.h>

namespace penstock::dialects {
namespace {

std::string event(std::string_view id, std::string_view choice) {
  return R"(data: {"id":")" + std::string(id) + R"(","choices":[)" + std::string(choice) + "]}\n\n";
}
std::string delta(std::string_view id, std::string_view delta, std::string_view finish = "null") {
  return event(id, R"({"index":0,"delta":)" + std::string(delta) + R"(,"finish_reason":)" +
                       std::string(finish) + "}");
}
std::string word(std::string_view id, std::string_view text) {
  return delta(id, R"({"content":)" + quoted(text) + "}");
}
std::string role(std::string_view id) {
  return delta(id, R"({"role":"assistant","content":""})");
}
const std::string kDone = "data: [DONE]\n\n";

// Feeds a stream, event by event; "DIFFERS" where it is found out.
std::string resumed(StreamReplay& replay, std::string_view stream) {
  std::string out;
  bool good = true;
  SseSplitter splitter;
  CHECK(splitter.feed(stream, [&](const SseEvent& e) {
    if (good) good = replay.event(e, out) == StreamReplay::Says::kGood;
  }));
  return good ? out : out + "DIFFERS";
}

std::string after(std::string_view sent, std::string_view again, WireApi api = WireApi::kChat) {
  StreamReplay replay(api);
  replay.sent(sent);
  if (!replay.begin_again()) return "CAN'T";
  return resumed(replay, again);
}

std::string text_of(std::string_view stream) {
  std::string out;
  SseSplitter splitter;
  splitter.feed(stream, [&](const SseEvent& e) {
    const auto from = e.data.find(R"("content":")");
    if (from == std::string_view::npos) return;
    const auto begin = from + 10;
    out += *decode_string(e.data.substr(begin, e.data.find('}', begin) - begin));
  });
  return out;
}

}  // namespace

TEST_CASE("replay: whichever way two engines cut one text, the client gets it once") {
  const std::string text = "na\xC3\xAFve \"ok\"\n end";
  // All places between characters.
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
      places.push_back(i);
  }
  const auto stream_of = [&](std::string_view id, std::size_t step) {
    std::string out = role(id);
    for (std::size_t i = 0; i + 1 < places.size(); i += step) {
      const std::size_t to = std::min(i + step, places.size() - 1);
      out += word(id, text.substr(places[i], places[to] - places[i]));
    }
    return out + delta(id, "{}", R"("stop")") + kDone;
  };
  for (std::size_t first = 1; first <= places.size(); ++first) {
    for (std::size_t second = 1; second <= places.size(); ++second) {
      const std::string before = stream_of("one", first);
      const std::string again = stream_of("two", second);
      for (std::size_t cut = before.find("\n\n") + 2; cut < before.size();
           cut = before.find("\n\n", cut) + 2) {
        const std::string rest = after(before.substr(0, cut), again);
        const std::string all = before.substr(0, cut) + rest;
        REQUIRE(text_of(all) == text);
        CHECK(all.ends_with(kDone));
        CHECK(rest.find("two") == std::string::npos);
        const std::string finish = R"("finish_reason":"stop")";
        CHECK(all.find(finish) == all.rfind(finish));
        CHECK(all.find(R"("role")") == all.rfind(R"("role")"));
      }
    }
  }
}

TEST_CASE("replay: another text is found out before any of it passes") {
  const std::string sent = role("a") + word("a", "one two");
  CHECK(after(sent, role("b") + word("b", "one t") + word("b", "oo")) == "DIFFERS");
  CHECK(after(sent, role("b") + word("b", "one") + delta("b", "{}", R"("stop")")) == "DIFFERS");
  CHECK(after(sent, role("b") + word("b", "one") + kDone) == "DIFFERS");
  CHECK(after(sent, "data: {\"oops\n\n") == "DIFFERS");
  CHECK(after(sent, role("b") + delta("b", R"({"tool_calls":[{"index":0,"id":"c"}]})")) ==
        "DIFFERS");
  CHECK(after(sent, delta("b", R"({"reasoning_content":"one two"})")) == "DIFFERS");
}

TEST_CASE("replay: reasoning, then content; what comes after passes as it is") {
  const std::string think = delta("a", R"({"reasoning_content":"hm"})");
  const std::string sent = think + word("a", "x");
  const std::string calls = delta("b", R"({"tool_calls":[{"index":0,"id":"call"}]})");
  CHECK(after(sent, delta("b", R"({"reasoning_content":"hm","content":null})") + ": ping\n\n" +
                        word("b", "xy") + calls) ==
        ": ping\n\n" + word("a", "y") + delta("a", R"({"tool_calls":[{"index":0,"id":"call"}]})"));
  CHECK(after(sent, delta("b", R"({"reasoning_content":"hmm"})")) == "DIFFERS");
  const std::string usage = event("b", "");
  CHECK(after(sent, usage + think + word("b", "x") + usage) == event("a", ""));
}

TEST_CASE("replay: completions; a last word with the end in one event") {
  const auto text = [](std::string_view id, std::string_view words, std::string_view finish) {
    return event(id, R"({"index":0,"text":)" + quoted(words) + R"(,"finish_reason":)" +
                         std::string(finish) + "}");
  };
  const std::string sent = text("a", "one two", "null");
  CHECK(after(sent, text("b", "one two", R"("length")") + kDone, WireApi::kCompletion) ==
        text("a", "", R"("length")") + kDone);
  CHECK(after(sent, text("b", "one two three", R"("length")") + kDone, WireApi::kCompletion) ==
        text("a", " three", R"("length")") + kDone);
  CHECK(after(sent, event("b", R"({"index":0,"text":"one two three","logprobs":{"tokens":[1]}})"),
              WireApi::kCompletion) == "DIFFERS");
}

// One call's streams, as the engine with this id cuts its arguments.
std::string called(std::string_view id, std::vector<std::string_view> pieces) {
  const auto call = [&](const std::string& what) {
    return delta(id, R"({"tool_calls":[{"index":0,)" + what + "}]}");
  };
  std::string out = role(id) + call(R"("id":"call-)" + std::string(id) +
                                    R"(","function":{"name":"f","arguments":""})");
  for (const std::string_view piece : pieces)
    out += call(R"("function":{"arguments":)" + quoted(piece) + "}");
  return out + delta(id, "{}", R"("tool_calls")") + kDone;
}

TEST_CASE("replay: a tool call goes on under the id that the client knows, cut anywhere") {
  const std::string one = called("a", {R"({"x)", R"(":"na)", "\xC3\xAFve", R"("})"});
  const std::string two = called("b", {R"({"x":)", R"("na)", "\xC3\xAF", R"(ve"})"});
  const auto arguments = [](std::string_view stream) {
    std::string out;
    SseSplitter splitter;
    splitter.feed(stream, [&](const SseEvent& e) {
      const auto choices = value_at(e.data, {"choices"});
      const auto choice = choices ? first_element(*choices) : std::nullopt;
      const auto calls = choice ? value_at(*choice, {"delta", "tool_calls"}) : std::nullopt;
      if (calls) out += string_at(*first_element(*calls), {"function", "arguments"}).value_or("");
    });
    return out;
  };
  for (std::size_t cut = one.find("\n\n") + 2; cut < one.size(); cut = one.find("\n\n", cut) + 2) {
    const std::string all = one.substr(0, cut) + after(one.substr(0, cut), two);
    CHECK(arguments(all) == "{\"x\":\"na\xC3\xAFve\"}");
    CHECK(all.ends_with(kDone));
    for (const std::string_view once : {R"("name":"f")", R"("id":"call-)", R"("finish_reason":"t)"})
      CHECK(all.find(once) == all.rfind(once));
  }
  // Another tool, or other arguments.
  const std::string begun = one.substr(0, one.find("\n\n", one.find(R"({\"x)")) + 2);
  std::string other = two;
  other.replace(other.find("\"f\""), 3, "\"g\"");
  CHECK(after(begun, other) == "DIFFERS");
  CHECK(after(begun, called("b", {R"({"y":1})"})) == "DIFFERS");
  CHECK(after(begun, role("b") + word("b", "no tool")) == "DIFFERS");
  // A name and arguments that come at once: the rest of them names nothing again.
  const std::string sent =
      role("a") +
      delta("a",
            R"({"tool_calls":[{"index":0,"id":"i","function":{"name":"f","arguments":"{\"x"}}]})");
  CHECK(
      after(
          sent,
          delta(
              "b",
              R"({"tool_calls":[{"index":0,"id":"j","function":{"name":"f","arguments":"{\"xy\""}}]})")) ==
      delta(
          "a",
          R"({"tool_calls":[{"index":0,"id":null,"function":{"name":null,"arguments":"y\""}}]})"));
}

TEST_CASE("replay: tokens out: whole ids are compared, and the rest of a chunk goes on") {
  const auto ids = [](std::string_view id, std::string_view list) {
    return R"(data: {"request_id":")" + std::string(id) +
           R"(","choices":[{"index":0,"token_ids":)" + std::string(list) + "}]}\n\n";
  };
  const std::string sent = ids("a", "[1,23]") + ids("a", "[4]");
  CHECK(after(sent, ids("b", "[1]") + ids("b", "[23,4,56,7]") + kDone, WireApi::kGenerate) ==
        ids("a", "[56,7]") + kDone);
  CHECK(after(sent, ids("b", "[1,23,45]"), WireApi::kGenerate) == "DIFFERS");
  CHECK(after(sent, ids("b", "[1,234]"), WireApi::kGenerate) == "DIFFERS");
}

std::string named(std::string_view type, std::string_view rest) {
  return "event: " + std::string(type) + R"(
data: {"type":")" +
         std::string(type) + "\"" + std::string(rest) + "}\n\n";
}

TEST_CASE("replay: Messages: blocks go on where they were; nothing begins or ends twice") {
  const auto stream = [](std::string_view id, std::vector<std::string_view> thinks,
                         std::vector<std::string_view> says) {
    std::string out = named("message_start", R"(,"message":{"id":")" + std::string(id) +
                                                 R"(","usage":{"input_tokens":5}})") +
                      named("content_block_start",
                            R"(,"index":0,"content_block":{"type":"thinking","thinking":""})");
    for (const std::string_view text : thinks)
      out +=
          named("content_block_delta",
                R"(,"index":0,"delta":{"type":"thinking_delta","thinking":)" + quoted(text) + "}");
    out +=
        named("content_block_delta",
              R"(,"index":0,"delta":{"type":"signature_delta","signature":")" + std::string(id) +
                  "\"}") +
        named("content_block_stop", R"(,"index":0)") + named("ping", "") +
        named("content_block_start", R"(,"index":1,"content_block":{"type":"tool_use","id":"t-)" +
                                         std::string(id) + R"(","name":"f","input":{}})");
    for (const std::string_view text : says)
      out += named(
          "content_block_delta",
          R"(,"index":1,"delta":{"type":"input_json_delta","partial_json":)" + quoted(text) + "}");
    return out + named("content_block_stop", R"(,"index":1)") +
           named("message_delta",
                 R"(,"delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":4})") +
           named("message_stop", "");
  };
  const std::string one = stream("a", {"hm", ", so"}, {"{\"x\"", ":1}"});
  const std::string two = stream("b", {"hm, s", "o"}, {"{", "\"x\":", "1}"});
  for (std::size_t cut = one.find("\n\n") + 2; cut < one.size(); cut = one.find("\n\n", cut) + 2) {
    const std::string all = one.substr(0, cut) + after(one.substr(0, cut), two, WireApi::kMessages);
    std::string thought;
    std::string said;
    std::string types;
    SseSplitter splitter;
    splitter.feed(all, [&](const SseEvent& e) {
      thought += string_at(e.data, {"delta", "thinking"}).value_or("");
      said += string_at(e.data, {"delta", "partial_json"}).value_or("");
      if (e.name != "content_block_delta" && e.name != "ping") types += std::string(e.name) + " ";
    });
    CHECK(thought == "hm, so");
    CHECK(said == "{\"x\":1}");
    CHECK(types ==
          "message_start content_block_start content_block_stop content_block_start "
          "content_block_stop message_delta message_stop ");
    const std::string_view signature = R"("signature_delta")";
    CHECK(all.find(signature) == all.rfind(signature));
  }
  const std::string begun = one.substr(0, one.find("event: ping"));
  CHECK(after(begun, stream("b", {"hm"}, {}), WireApi::kMessages) == "DIFFERS");
  CHECK(after(begun, stream("b", {"hm, so what"}, {}), WireApi::kMessages) == "DIFFERS");
}

TEST_CASE("replay: Responses: items keep their ids, events go on counting") {
  const auto stream = [](const std::string& id, std::vector<std::string_view> words) {
    int number = 0;
    std::string out;
    std::string text;
    const auto add = [&](std::string_view type, const std::string& rest) {
      out += named(type, R"(,"sequence_number":)" + std::to_string(number++) + rest);
    };
    const std::string at = R"(,"item_id":"m)" + id + R"(","output_index":0,"content_index":0)";
    const std::string item = R"(,"output_index":0,"item":{"type":"message","id":"m)" + id + "\"}";
    add("response.created", R"(,"response":{"id":"r)" + id + R"(","created_at":)" + id + "}");
    add("response.output_item.added", item);
    add("response.content_part.added", at);
    for (const std::string_view word : words) {
      text += word;
      add("response.output_text.delta", at + R"(,"delta":)" + quoted(word));
    }
    add("response.output_text.done", at + R"(,"text":)" + quoted(text));
    add("response.output_item.done", item);
    add("response.completed", R"(,"response":{"id":"r)" + id + R"(","created_at":)" + id +
                                  R"(,"output":[{"id":"m)" + id + R"(","text":)" + quoted(text) +
                                  "}]}");
    return out;
  };
  const std::string text = "is \"m2\" it";
  const std::string one = stream("1", {"is ", "\"m2\" ", "it"});
  const std::string two = stream("2", {"is \"m", "2\" i", "t"});
  for (std::size_t cut = one.find("\n\n") + 2; cut < one.size(); cut = one.find("\n\n", cut) + 2) {
    const std::string all =
        one.substr(0, cut) + after(one.substr(0, cut), two, WireApi::kResponses);
    std::string said;
    int number = 0;
    SseSplitter splitter;
    splitter.feed(all, [&](const SseEvent& e) {
      CHECK(integer_at(e.data, {"sequence_number"}) == number++);
      said += string_at(e.data, {"delta"}).value_or("");
    });
    CHECK(said == text);
    // The item has the name that the client heard first.
    const std::string_view other = one.substr(0, cut).contains(R"("m1")") ? "m2" : "m1";
    CHECK_FALSE(all.contains(R"("id":")" + std::string(other) + "\""));
    CHECK_FALSE(all.contains(R"("item_id":")" + std::string(other) + "\""));
    CHECK_FALSE(all.contains("r2"));
    CHECK_FALSE(all.contains(R"("created_at":2)"));
    CHECK(all.contains(R"("text":"is \"m2\" it"}]}})"));
  }
}

TEST_CASE("replay: what may come several times is not taken for what was sent") {
  const std::string delta = named("message_delta", R"(,"usage":{"output_tokens":4})");
  CHECK(after(delta, delta + delta + named("message_stop", ""), WireApi::kMessages) ==
        delta + named("message_stop", ""));
  CHECK(after(delta + delta, delta, WireApi::kMessages) == "CAN'T");
  const std::string note =
      named("response.output_text.annotation.added", R"(,"output_index":0,"annotation":{})");
  CHECK(after(note, note, WireApi::kResponses) == "CAN'T");
  CHECK(after(named("response.web_search_call.searching", R"(,"output_index":0)"), "",
              WireApi::kResponses) == "CAN'T");
}

TEST_CASE("replay: what can't be found again") {
  CHECK(after(role("a") + delta("a", R"({"tool_calls":[{"index":0},{"index":1}]})"), "") ==
        "CAN'T");
  CHECK(after(delta("a", R"({"function_call":{"name":"f"}})"), "") == "CAN'T");
  CHECK(after(event("a", R"({"index":1,"delta":{"content":"x"}})"), "") == "CAN'T");
  CHECK(after("data: what\n\n", "") == "CAN'T");
  StreamReplay replay(WireApi::kChat);
  const std::string big = word("a", std::string(StreamReplay::kBytesMax / 2, 'x'));
  replay.sent(big);
  CHECK(replay.begin_again());
  replay.sent(big);
  CHECK_FALSE(replay.begin_again());
}

TEST_CASE("replay: a second death is as good as the first") {
  StreamReplay replay(WireApi::kChat);
  replay.sent(role("a") + word("a", "one "));
  REQUIRE(replay.begin_again());
  CHECK(resumed(replay, role("b") + word("b", "one two ")) == word("a", "two "));
  REQUIRE(replay.begin_again());
  CHECK(resumed(replay, role("c") + word("c", "one tw") + word("c", "o three") + kDone) ==
        word("a", "three") + kDone);
}

TEST_CASE("replay: requests that give the same text again") {
  const auto repeats = [](std::string_view text, WireApi api = WireApi::kChat) {
    const auto body = JsonBody::read(text, StreamReplay::kKeys);
    REQUIRE(body.has_value());
    return StreamReplay::repeats(*body, api);
  };
  CHECK(repeats(R"({"temperature":0})"));
  CHECK(repeats(R"({"temperature":0.0,"n":1})"));
  CHECK(repeats(R"({"seed":7,"temperature":0.8})", WireApi::kCompletion));
  CHECK_FALSE(repeats(R"({"temperature":0.1})"));
  CHECK_FALSE(repeats(R"({"temperature":null,"seed":null})"));
  CHECK_FALSE(repeats("{}"));
  CHECK_FALSE(repeats(R"({"temperature":0,"n":2})"));
  CHECK_FALSE(repeats(R"({"temperature":0,"best_of":2})"));
  for (const WireApi api : {WireApi::kMessages, WireApi::kResponses}) {
    CHECK(repeats(R"({"temperature":0})", api));
    CHECK_FALSE(repeats(R"({"temperature":1,"seed":5})", api));  // they know none
  }
  CHECK(repeats(R"({"sampling_params":{"seed":5}})", WireApi::kGenerate));
  CHECK_FALSE(repeats(R"({"sampling_params":{"seed":5,"n":2}})", WireApi::kGenerate));
  CHECK_FALSE(repeats(R"({"temperature":0})", WireApi::kEmbeddings));
  CHECK(repeats(R"({"temperature":0,"tools":[{"type":"function"},{"name":"f"}]})"));
  // The engine would search twice.
  CHECK_FALSE(repeats(R"({"temperature":0,"tools":[{"type":"web_search"}]})", WireApi::kResponses));
}

}  // namespace penstock::dialects
