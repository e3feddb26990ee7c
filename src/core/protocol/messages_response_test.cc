#include "core/protocol/messages_response.h"

#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "core/protocol/messages_fold.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

// Feeds both writers alike.
struct Both {
  std::unique_ptr<AnswerWriter> stream = make_messages_stream({"msg_1", "nano", "req-1"});
  std::unique_ptr<AnswerWriter> collector = make_messages_collector({"msg_1", "nano", "req-1"});
  std::string events;
  std::string whole;

  void start(const Usage& usage) {
    stream->start(usage, events);
    collector->start(usage, whole);
  }
  void add(const ChatDelta& delta) {
    stream->add(delta, events);
    collector->add(delta, whole);
    CHECK(whole.empty());
  }
  void finish(const ChoiceEnd& how) {
    stream->finish(0, how, events);
    collector->finish(0, how, whole);
  }
  void end(const Usage& usage) {
    stream->end(usage, events);
    collector->end(usage, whole);
  }
};

// A script of events, one a line, played into both writers.
class Player {
 public:
  std::string play(const std::string& script) {
    std::istringstream lines(script);
    for (std::string line; std::getline(lines, line);)
      command(line);
    const auto folded = MessagesFolder().fold(both_.events);
    CHECK_MESSAGE(folded.problem.empty(), folded.problem);
    if (failed_) {
      CHECK(!folded.error.empty());
      CHECK(!folded.done);
      return both_.events;
    }
    CHECK(folded.done);
    CHECK(folded.whole == boost::json::parse(both_.whole).as_object());
    return both_.events + "whole: " + both_.whole;
  }

 private:
  static Usage usage(std::istringstream& in) {
    Usage u;
    in >> u.prompt_tokens >> u.cached_tokens >> u.completion_tokens >> u.reasoning_tokens;
    return u;
  }

  void command(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    ChatDelta delta;
    if (what == "start") {
      both_.start(usage(in));
    } else if (what == "end") {
      both_.end(usage(in));
    } else if (what == "ping") {
      both_.stream->keep_alive(both_.events);
      both_.collector->keep_alive(both_.whole);
    } else if (what == "fail") {
      failed_ = true;
      both_.stream->fail({ErrorCode::kUnavailable, "the worker is gone", {}, {}}, both_.events);
    } else if (what == "finish") {
      finish(in);
    } else if (what == "tool") {
      ToolCallPiece piece;
      std::string id;
      std::string name;
      in >> piece.index >> id >> name;
      const auto arguments = rest(in);
      piece.id = id;
      piece.name = name;
      piece.arguments = arguments;
      delta.tool_calls = {&piece, 1};
      both_.add(delta);
    } else {
      const auto text = rest(in);
      (what == "thinking" ? delta.reasoning : delta.content) = text;
      both_.add(delta);
    }
  }

  void finish(std::istringstream& in) {
    std::string how;
    in >> how;
    ChoiceEnd end;
    if (how == "max" || how == "full") end.reason = FinishReason::kLength;
    end.context_full = how == "full";
    end.called_tools = how == "tools";
    std::string stop = "STOP";
    if (how == "string") end.stop_string = stop;
    both_.finish(end);
    stop = "gone";  // the writer keeps what it needs
  }

  static std::string rest(std::istringstream& in) {
    std::string text;
    in.get();
    std::getline(in, text);
    return text;
  }

  Both both_;
  bool failed_ = false;
};

}  // namespace

TEST_CASE("messages as text cases: the events, and the whole they fold into") {
  test::run_cases("protocol/messages_response.txt",
                  [](const std::string& script) { return Player().play(script); });
}

TEST_CASE("however a message is cut into deltas, the stream folds into the same whole") {
  const std::string text = "Caf\u00e9 \U0001F600 \"quoted\"\nline \u4f60\u597d";
  const std::string arguments = R"({"city":"Z\u00fcrich","n":[1,2]})";
  const auto pieces = [](std::string_view whole, Rng& rng) {
    std::vector<std::string_view> out;
    for (std::size_t i = 0; i < whole.size();) {
      std::size_t n = 1 + rng.below(4);
      while (i + n < whole.size() && (whole[i + n] & 0xC0) == 0x80)
        ++n;
      out.push_back(whole.substr(i, n));
      i += n;
    }
    return out;
  };
  std::string expected;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    Both both;
    both.start({10, 3, 0, 0});
    for (const auto piece : pieces(text, rng))
      both.add({.reasoning = piece});
    for (const auto piece : pieces(text, rng)) {
      if (rng.below(4) == 0) both.stream->keep_alive(both.events);
      both.add({.content = piece});
    }
    for (std::uint32_t call = 0; call < 3; ++call) {
      const ToolCallPiece open{call, call == 0 ? "id0" : "idn", "f", {}};
      both.add({.tool_calls = {&open, 1}});
      if (call == 1) continue;  // a call without arguments between two with
      for (const auto part : pieces(arguments, rng)) {
        const ToolCallPiece piece{call, {}, {}, part};
        both.add({.tool_calls = {&piece, 1}});
      }
    }
    both.finish({FinishReason::kStop, true, false, {}});
    both.end({10, 3, 7, 2});
    const auto folded = MessagesFolder().fold(both.events);
    CHECK(folded.problem == "");
    CHECK(folded.done);
    CHECK(folded.whole == boost::json::parse(both.whole).as_object());
    if (seed == 0) expected = both.whole;
    CHECK(both.whole == expected);
  }
}

TEST_CASE("a stream that fails after any number of events ends in an error, never in a stop") {
  for (std::size_t events = 0; events < 6; ++events) {
    CAPTURE(events);
    const auto stream = make_messages_stream({"msg_1", "nano", "req-1"});
    std::string out;
    const ToolCallPiece call{0, "toolu_1", "f", R"({"a":)"};
    const std::vector<ChatDelta> deltas = {
        {.reasoning = "why"}, {.content = "so"}, {.tool_calls = {&call, 1}}};
    if (events > 0) stream->start({5, 0, 0, 0}, out);
    for (std::size_t i = 0; i + 1 < events && i < deltas.size(); ++i)
      stream->add(deltas[i], out);
    if (events == 5) stream->finish(0, {}, out);
    stream->fail({ErrorCode::kInternal, "broke\n\nevent: message_stop", {}, {}}, out);
    const auto folded = MessagesFolder().fold(out);
    CHECK(folded.problem == "");
    CHECK(folded.error == "api_error");
    CHECK(!folded.done);
  }
}

TEST_CASE("what is no JSON in a call's arguments does not break the answer") {
  Both both;
  both.start({});
  const ToolCallPiece call{0, "toolu_1", "f", R"({"a": oops})"};
  both.add({.tool_calls = {&call, 1}});
  both.finish({FinishReason::kStop, true, false, {}});
  both.end({});
  const auto whole = boost::json::parse(both.whole).as_object();
  CHECK(whole.at("content").at(0).at("input").at("raw") == R"({"a": oops})");
}

TEST_CASE("a count of tokens is that and nothing else") {
  CHECK(messages_token_count(42) == R"({"input_tokens":42})");
}

}  // namespace penstock::protocol
