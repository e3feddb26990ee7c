#include "core/dialects/stream_replay.h"

#include <algorithm>
#include <string>
#include <vector>

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
  CHECK(after(sent, role("b") + delta("b", R"({"tool_calls":[{"index":0}]})")) == "DIFFERS");
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

TEST_CASE("replay: what can't be found again") {
  CHECK(after(role("a") + delta("a", R"({"tool_calls":[{"index":0}]})"), "") == "CAN'T");
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
  CHECK_FALSE(repeats(R"({"temperature":0})", WireApi::kMessages));
}

}  // namespace penstock::dialects
