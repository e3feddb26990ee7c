// `penstock chat`: a conversation in the terminal, or one question.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <optional>

#include "app/api_client.h"
#include "app/chat_session.h"
#include "app/commands.h"
#include "app/console.h"

namespace penstock {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Set by Ctrl-C; stops the answer that is being printed.
std::atomic<bool> interrupted{false};
void on_interrupt(int) {
  interrupted = true;
}

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;  // without SA_RESTART, so that reading a line returns
  ::sigaction(SIGINT, &action, nullptr);
}

struct Style {
  std::string_view dim;
  std::string_view plain;
};
Style style() {
  if (!is_terminal(stdout)) return {};
  return {"\x1b[2m", "\x1b[0m"};
}

// Prints the pieces of an answer as they come and counts.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool reasoning)
      : show_reasoning_(reasoning), terminal_(is_terminal(stdout)) {}

  void take(const ChatDelta& delta) {
    if (!first_ && !(delta.content + delta.reasoning).empty()) first_ = SteadyClock::now();
    if (!delta.usage.empty()) usage_ = delta.usage;
    if (!delta.reasoning.empty() && show_reasoning_) {
      if (!std::exchange(thinking_, true)) fmt::print("{}", style_.dim);
      print(delta.reasoning);
    }
    if (!delta.content.empty()) {
      if (std::exchange(thinking_, false)) fmt::print("{}\n", style_.plain);
      print(delta.content);
      content_ += delta.content;
    }
    if (delta.finish_reason == "length") cut_ = true;
  }

  void end() {
    if (std::exchange(thinking_, false)) fmt::print("{}", style_.plain);
    if (!content_.ends_with('\n')) fmt::print("\n");
    std::fflush(stdout);
    if (cut_) fmt::print(stderr, "(cut at the limit of tokens)\n");
  }

  void print_speed() const {
    const auto seconds = std::chrono::duration<double>(SteadyClock::now() - start_).count();
    const auto to_first = std::chrono::duration<double>(first_.value_or(start_) - start_).count();
    const auto tokens = number("completion_tokens");
    const double rest = seconds - to_first;
    fmt::print(stderr, "({} prompt + {} answer tokens, first after {:.0f} ms, {:.0f} tokens/s)\n",
               number("prompt_tokens"), tokens, to_first * 1000,
               rest > 0 && tokens > 1 ? static_cast<double>(tokens - 1) / rest : 0);
  }

  const std::string& content() const { return content_; }

 private:
  std::int64_t number(std::string_view key) const {
    const auto* const value = usage_.if_contains(key);
    return value != nullptr && value->is_int64() ? value->as_int64() : 0;
  }
  void print(const std::string& text) {
    const std::string shown = terminal_ ? terminal_text(text) : text;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }

  bool show_reasoning_;
  bool terminal_;
  Style style_ = style();
  SteadyClock::time_point start_ = SteadyClock::now();
  std::optional<SteadyClock::time_point> first_;
  boost::json::object usage_;
  std::string content_;
  bool thinking_ = false;
  bool cut_ = false;
};

// Asks the history's last question and appends the answer; a question without an answer is taken
// back.
Status ask(const ApiTarget& target, ChatSession& session, const Options& options, bool reasoning) {
  interrupted = false;
  AnswerPrinter printer(reasoning);
  const auto status = stream_chat(
      target, session.request(),
      {.on_delta = [&](const ChatDelta& delta) { printer.take(delta); }, .cancel = &interrupted});
  const bool stopped = !status && status.error().code == ErrorCode::kCancelled;
  if (status || stopped || !printer.content().empty()) printer.end();
  if (options.verbose && status) printer.print_speed();
  if (stopped) fmt::print(stderr, "(stopped)\n");
  if (status || (stopped && !printer.content().empty())) {
    session.history.push_back({"assistant", printer.content()});
  } else {
    session.history.pop_back();
  }
  return stopped ? Status{} : status;
}

// One input, over several lines when they end with a backslash; nullopt at the end of input.
std::optional<std::string> read_input() {
  std::string text;
  std::string_view prompt = "> ";
  while (true) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line)) {
      if (!interrupted.exchange(false)) return std::nullopt;
      std::cin.clear();
      std::clearerr(stdin);
      fmt::print("\n(/quit or Ctrl-D ends)\n");
      text.clear();
      prompt = "> ";
      continue;
    }
    const bool more = line.ends_with('\\');
    if (more) line.pop_back();
    text += line;
    if (!more) return text;
    text += '\n';
    prompt = ". ";
  }
}

Result<int> converse(const ApiTarget& target, ChatSession session, const Options& options,
                     const std::vector<std::string>& models) {
  fmt::print(stderr, "Talking to {} on {}. /help lists commands.\n", session.model, target.url);
  while (auto input = read_input()) {
    if (input->find_first_not_of(" \t\n") == std::string::npos) continue;
    if (is_slash_command(*input)) {
      const auto done = run_slash_command(*input, session, models);
      if (done && done->quit) break;
      fmt::print(stderr, "{}\n", done ? done->say : done.error().message);
      continue;
    }
    session.history.push_back({"user", *input});
    if (auto status = ask(target, session, options, true); !status) print_error(status.error());
  }
  return 0;
}

// The question of the command line, and what is piped in after it.
Result<std::string> one_question(const Options& options) {
  std::string question = fmt::format("{}", fmt::join(options.words, " "));
  if (is_terminal(stdin)) return question;
  const std::string piped{std::istreambuf_iterator<char>(std::cin), {}};
  if (!question.empty() && !piped.empty()) question += "\n";
  question += piped;
  while (question.ends_with('\n'))
    question.pop_back();
  if (question.empty())
    return fail(ErrorCode::kInvalidArgument, "nothing to ask: no question and no input");
  return question;
}

}  // namespace

Result<int> run_chat(const Options& options) {
  ApiTarget target;
  target.url = options.url.empty() ? "http://127.0.0.1:8080" : options.url;
  target.key = key_from_environment();
  target.ca_file = options.ca_file;
  auto models = list_models(target);
  if (!models && models.error().code == ErrorCode::kUnavailable)
    return fail(ErrorCode::kUnavailable,
                fmt::format("{}; start a server with `penstock serve` or give --url",
                            models.error().message));
  if (!models) return std::unexpected(std::move(models).error());
  if (models->empty()) return fail(ErrorCode::kUnavailable, "the server has no model");
  ChatSession session;
  session.model = options.chat_model.empty() ? models->front() : options.chat_model;
  session.system = options.system_prompt;
  session.temperature = options.temperature;
  session.max_tokens = options.max_tokens;
  const bool one_shot = !options.words.empty() || !is_terminal(stdin);
  if (!one_shot) {
    catch_interrupts();
    return converse(target, std::move(session), options, *models);
  }
  TRY(auto question, one_question(options));
  session.history.push_back({"user", std::move(question)});
  TRY_STATUS(ask(target, session, options, is_terminal(stdout)));
  return 0;
}

}  // namespace penstock
