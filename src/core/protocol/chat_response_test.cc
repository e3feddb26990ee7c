#include "core/protocol/chat_response.h"

#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "core/protocol/chat_fold.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

// A script of events, one a line, played into both writers.
class Player {
 public:
  std::string play(const std::string& script) {
    std::istringstream lines(script);
    for (std::string line; std::getline(lines, line);)
      command(line);
    if (failed_) return out_;
    CHECK_MESSAGE(check_fold().empty(), check_fold());
    return out_ + "whole: " + whole_;
  }

 private:
  std::string check_fold() {
    const auto folded = StreamFolder().fold(out_);
    if (!folded.problem.empty()) return folded.problem;
    if (!folded.done) return "no [DONE]";
    auto expected = normalize_whole(whole_);
    if (!answer_.include_usage) expected.erase("usage");
    if (folded.whole == expected) return {};
    return boost::json::serialize(folded.whole) + " != " + boost::json::serialize(expected);
  }

  ChatStream& stream() {
    if (!stream_) {
      stream_.emplace(answer_);
      collector_.emplace(answer_);
    }
    return *stream_;
  }
  void add(const ChatDelta& delta) {
    stream().add(delta, out_);
    collector_->add(delta);
  }

  void command(const std::string& line) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "answer") {
      answer_ = {.id = "chatcmpl-1", .created = 7, .model = "nano"};
      for (std::string option; in >> option;)
        set(option);
      return;
    }
    if (what == "end") {
      Usage u;
      in >> u.prompt_tokens >> u.cached_tokens >> u.completion_tokens >> u.reasoning_tokens;
      stream().end(u, out_);
      whole_ = collector_->body(u);
      return;
    }
    if (what == "fail") {
      stream().fail({ErrorCode::kUnavailable, "the worker is gone", {}, {}}, out_);
      failed_ = true;
      return;
    }
    ChatDelta delta;
    in >> delta.choice;
    if (what == "start") {
      stream().start(delta.choice, out_);
    } else if (what == "finish") {
      std::string reason;
      in >> reason;
      finish(delta.choice, reason);
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
      add(delta);
    } else {
      const auto text = rest(in);
      std::vector<LogprobEntry> logprobs;
      if (what == "reasoning") delta.reasoning = text;
      if (what == "content") delta.content = text;
      if (what == "logprob") logprobs = {{{text, -0.25F}, {{text, -0.25F}, {"\xff", -INFINITY}}}};
      if (what == "logprob" && text != "-") delta.content = text;
      delta.logprobs = logprobs;
      add(delta);
    }
  }

  void set(const std::string& option) {
    if (option == "usage") answer_.include_usage = true;
    if (option == "logprobs") answer_.logprobs = true;
    if (option == "two") answer_.choices = 2;
    if (option == "fast") answer_.service_tier = "fast";
    if (option == "fingerprint") answer_.system_fingerprint = "fp_1";
  }

  void finish(std::uint32_t choice, const std::string& reason) {
    const auto value = reason == "stop"             ? ChatFinish::kStop
                       : reason == "length"         ? ChatFinish::kLength
                       : reason == "tool_calls"     ? ChatFinish::kToolCalls
                       : reason == "content_filter" ? ChatFinish::kContentFilter
                                                    : ChatFinish::kInsufficientSystemResource;
    stream().finish(choice, value, out_);
    collector_->finish(choice, value);
  }

  // The rest of the line after one space, with \n for a newline and \xHH for a byte.
  static std::string rest(std::istringstream& in) {
    std::string raw;
    in.get();
    std::getline(in, raw);
    std::string out;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] == '\\' && i + 1 < raw.size() && raw[i + 1] == 'n') {
        out += '\n';
        ++i;
      } else if (raw[i] == '\\' && i + 3 < raw.size() && raw[i + 1] == 'x') {
        int byte = 0;
        std::from_chars(raw.data() + i + 2, raw.data() + i + 4, byte, 16);
        out += static_cast<char>(byte);
        i += 3;
      } else {
        out += raw[i];
      }
    }
    return out;
  }

  ChatAnswer answer_;
  std::optional<ChatStream> stream_;
  std::optional<ChatCollector> collector_;
  std::string out_;
  std::string whole_;
  bool failed_ = false;
};

}  // namespace

TEST_CASE("answers as text cases: the chunks, and the whole they fold into") {
  test::run_cases("protocol/chat_response.txt",
                  [](const std::string& script) { return Player().play(script); });
}

TEST_CASE("finish reasons: length wins, a named tool stops") {
  const ToolChoice automatic;
  const ToolChoice required{.mode = ToolChoiceMode::kRequired, .name = {}, .allowed = {}};
  const ToolChoice named{.mode = ToolChoiceMode::kNamed, .name = "f", .allowed = {}};
  CHECK(chat_finish(FinishReason::kStop, false, automatic) == ChatFinish::kStop);
  CHECK(chat_finish(FinishReason::kStop, true, automatic) == ChatFinish::kToolCalls);
  CHECK(chat_finish(FinishReason::kStop, true, required) == ChatFinish::kToolCalls);
  CHECK(chat_finish(FinishReason::kStop, true, named) == ChatFinish::kStop);
  CHECK(chat_finish(FinishReason::kLength, true, automatic) == ChatFinish::kLength);
}

TEST_CASE("however an answer is cut into deltas, the stream folds into the same whole") {
  const std::string content = "Caf\u00e9 \U0001F600 \"quoted\"\nline \u4f60\u597d";
  const std::string arguments = R"({"city":"Z\u00fcrich","n":[1,2]})";
  // Whole characters only: that is the detokenizer's promise.
  const auto pieces = [](const std::string& text, Rng& rng) {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < text.size();) {
      std::size_t n = 1 + rng.below(4);
      while (i + n < text.size() && (text[i + n] & 0xC0) == 0x80)
        ++n;
      out.push_back(text.substr(i, n));
      i += n;
    }
    return out;
  };
  std::string expected;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const ChatAnswer answer{
        .id = "c", .created = 1, .model = "m", .choices = 2, .include_usage = true};
    ChatStream stream(answer);
    ChatCollector collector(answer);
    std::string out;
    const auto add = [&](const ChatDelta& delta) {
      stream.add(delta, out);
      collector.add(delta);
    };
    for (const auto& piece : pieces(content, rng)) {
      add({.choice = 1, .reasoning = piece});
      add({.choice = 0, .content = piece});
    }
    for (std::uint32_t call = 0; call < 3; ++call) {
      ToolCallPiece open{call, call == 0 ? "id0" : "idn", "f", {}};
      add({.choice = 0, .tool_calls = {&open, 1}});
      if (call == 1) continue;  // a call without arguments between two with
      for (const auto& text : pieces(arguments, rng)) {
        const ToolCallPiece piece{call, {}, {}, text};
        add({.choice = 0, .tool_calls = {&piece, 1}});
      }
    }
    for (const std::uint32_t choice : {1U, 0U}) {
      stream.finish(choice, ChatFinish::kStop, out);
      collector.finish(choice, ChatFinish::kStop);
    }
    const Usage usage{10, 3, 7, 2};
    stream.end(usage, out);
    const auto whole = collector.body(usage);
    const auto folded = StreamFolder().fold(out);
    CHECK(folded.problem == "");
    CHECK((folded.whole == normalize_whole(whole)));
    if (seed == 0) expected = whole;
    CHECK(whole == expected);
  }
}

TEST_CASE("a chunk is one event: no newline inside, whatever the model says") {
  ChatStream stream({.id = "c", .created = 1, .model = "m"});
  std::string out;
  stream.add({.content = "\n\ndata: {\"error\":1}\n\n\r\xe2\x80\xa8"}, out);
  CHECK(std::ranges::count(out, '\n') == 2);
  CHECK(out.ends_with("\n\n"));
  CHECK_FALSE(out.contains('\r'));
}

}  // namespace penstock::protocol
