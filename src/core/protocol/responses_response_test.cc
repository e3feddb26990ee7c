#include "core/protocol/responses_response.h"

#include <fmt/format.h>

#include <sstream>
#include <string>
#include <vector>

#include "core/protocol/responses_fold.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

const Error kLost{ErrorCode::kUnavailable, "the worker is gone", {}, {}};

// Plays a case's lines into both writers.
class Player {
 public:
  void line(const std::string& text) {
    std::istringstream in(text);
    std::string word;
    in >> word;
    std::string rest;
    std::getline(in, rest);
    if (!rest.empty()) rest.erase(0, 1);
    if (word == "answer") {
      begin(rest);
    } else if (word == "start") {
      each([](auto& w, auto& out) { w.start(Usage{}, out); });
    } else if (word == "content" || word == "reasoning") {
      ChatDelta delta;
      (word == "content" ? delta.content : delta.reasoning) = rest;
      delta.logprobs = logprobs_;
      add(delta);
      logprobs_.clear();
    } else if (word == "logprob") {
      logprobs_.push_back({{rest, -0.5F}, {{rest, -0.5F}, {"other", -2.0F}}});
    } else if (word == "call") {
      const auto space = rest.find(' ');
      ++calls_;
      piece({calls_ - 1,
             std::string_view(rest).substr(0, space),
             std::string_view(rest).substr(space + 1),
             {}});
    } else if (word == "arguments") {
      piece({calls_ - 1, {}, {}, rest});
    } else if (word == "ping") {
      each([](auto& w, auto& out) { w.keep_alive(out); });
    } else if (word == "finish") {
      const auto reason = rest == "length" ? FinishReason::kLength : FinishReason::kStop;
      each([&](auto& w, auto& out) { w.finish(0, {.reason = reason}, out); });
    } else if (word == "end") {
      each([](auto& w, auto& out) { w.end({10, 4, 7, 2}, out); });
    } else if (word == "fail") {
      each([](auto& w, auto& out) { w.fail(kLost, out); });
    } else {
      FAIL("unknown line: " << text);
    }
  }

  std::string take() {
    const auto folded = ResponseFolder().fold(events_);
    CHECK_MESSAGE(folded.problem.empty(), folded.problem << "\n" << events_);
    CHECK(folded.whole == boost::json::parse(body_).as_object());
    CHECK(stream_->body() == body_);
    return events_ + "whole: " + body_;
  }

 private:
  void begin(const std::string& options) {
    ResponsesAnswer answer{.name = "1", .created = 7, .model = "nano", .stream = true};
    const auto has = [&](std::string_view word) { return options.find(word) != std::string::npos; };
    answer.background = has("background");
    answer.logprobs = has("logprobs");
    answer.encrypted_reasoning = has("encrypted");
    if (has("spaces")) answer.spaces["n__f"] = {"n", "f"};
    answer.echo = R"("store":true)";
    answer.unix_seconds = [] { return std::int64_t{9}; };
    answer.seal.close = [](std::string_view purpose, std::string_view text) {
      return fmt::format("{}/{}", purpose, text);
    };
    stream_.emplace(answer);
    answer.stream = false;
    whole_.emplace(std::move(answer));
  }
  template <typename Call>
  void each(const Call& call) {
    call(*stream_, events_);
    call(*whole_, body_);
  }
  void add(const ChatDelta& delta) {
    each([&](auto& w, auto& out) { w.add(delta, out); });
  }
  void piece(const ToolCallPiece& one) {
    ChatDelta delta;
    delta.tool_calls = std::span(&one, 1);
    add(delta);
  }

  std::optional<ResponsesWriter> stream_;
  std::optional<ResponsesWriter> whole_;
  std::string events_;
  std::string body_;
  std::vector<LogprobEntry> logprobs_;
  std::uint32_t calls_ = 0;
};

std::string run(const std::string& script) {
  Player player;
  for (const auto& line : test::split_at_lines(script, "")) {
    std::istringstream lines(line);
    std::string one;
    while (std::getline(lines, one))
      player.line(one);
  }
  return player.take();
}

}  // namespace

TEST_CASE("Responses answers as text cases, streamed and whole") {
  test::run_cases("protocol/responses_response.txt", run);
}

TEST_CASE("a response that is ended from outside keeps what it had") {
  ResponsesWriter writer({.name = "1", .created = 7, .model = "nano", .echo = R"("store":true)"});
  const auto running = writer.body();
  const auto cancelled = ended_response(running, "cancelled", "null");
  auto expected = boost::json::parse(running).as_object();
  expected["status"] = "cancelled";
  CHECK(boost::json::parse(cancelled) == expected);
  CHECK(ending_events(cancelled, "cancelled", {}, 5) ==
        "event: response.cancelled\ndata: {\"type\":\"response.cancelled\",\"sequence_number\":5,"
        "\"response\":" +
            cancelled + "}\n\ndata: [DONE]\n\n");
  const auto failed = ended_response(running, "failed", responses_error(kLost));
  CHECK(boost::json::parse(failed).at("error").at("message") == "the worker is gone");
  CHECK(ending_events(failed, "failed", kLost, 5)
            .starts_with("event: error\ndata: {\"type\":\"error\","
                         "\"sequence_number\":5,"));
}

}  // namespace penstock::protocol
