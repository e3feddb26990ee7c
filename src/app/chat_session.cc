#include "app/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>

#include "app/console.h"
#include "app/suggest.h"
#include "io/files/files.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr std::string_view kHelp =
    "/reset          forget the conversation\n"
    "/system TEXT    set the system prompt and start again; without TEXT, remove it\n"
    "/model [NAME]   use another model; without NAME, list them\n"
    "/save FILE      write the conversation as JSON\n"
    "/quit           end (Ctrl-D too)\n"
    "A line that ends with \\ goes on in the next. Ctrl-C stops an answer.";

std::string_view trim(std::string_view text) {
  const auto start = text.find_first_not_of(" \t\r");
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(" \t\r") - start + 1);
}

Result<SlashResult> change_model(std::string_view name, ChatSession& session,
                                 const std::vector<std::string>& models) {
  if (name.empty())
    return SlashResult{
        false, fmt::format("using {}; the server has: {}", session.model, fmt::join(models, ", "))};
  if (std::ranges::find(models, name) == models.end()) {
    const std::vector<std::string_view> known(models.begin(), models.end());
    return fail(ErrorCode::kNotFound,
                fmt::format("the server has no model \"{}\"{}", name, did_you_mean(name, known)));
  }
  session.model = name;
  return SlashResult{false, fmt::format("using {}", name)};
}

}  // namespace

json::array ChatSession::messages() const {
  json::array out;
  if (!system.empty()) out.push_back(json::object{{"role", "system"}, {"content", system}});
  for (const auto& message : history)
    out.push_back(json::object{{"role", message.role}, {"content", message.content}});
  return out;
}

json::object ChatSession::request() const {
  json::object body{{"model", model}, {"messages", messages()}, {"temperature", temperature}};
  if (max_tokens > 0) body["max_tokens"] = max_tokens;
  return body;
}

bool is_slash_command(std::string_view line) {
  return line.starts_with('/');
}

Result<SlashResult> run_slash_command(std::string_view line, ChatSession& session,
                                      const std::vector<std::string>& models) {
  const auto gap = std::min(line.find_first_of(" \t"), line.size());
  const auto name = trim(line.substr(0, gap));
  const auto argument = trim(line.substr(gap));
  if (name == "/help") return SlashResult{false, std::string(kHelp)};
  if (name == "/quit" || name == "/exit") return SlashResult{true, {}};
  if (name == "/reset") {
    session.history.clear();
    return SlashResult{false, "forgotten"};
  }
  if (name == "/system") {
    session.system = argument;
    session.history.clear();
    return SlashResult{false, argument.empty() ? "no system prompt" : "system prompt set"};
  }
  if (name == "/model") return change_model(argument, session, models);
  if (name == "/save") {
    if (argument.empty()) return fail(ErrorCode::kInvalidArgument, "/save needs a file name");
    const json::object document{{"model", session.model}, {"messages", session.messages()}};
    TRY_STATUS(write_file_atomically(std::string(argument),
                                     pretty_json(json::serialize(document)) + "\n"));
    return SlashResult{false, fmt::format("saved to {}", argument)};
  }
  constexpr std::array<std::string_view, 6> kNames = {"/help",   "/quit",  "/reset",
                                                      "/system", "/model", "/save"};
  return fail(ErrorCode::kInvalidArgument, fmt::format("unknown command {}{} (/help lists them)",
                                                       name, did_you_mean(name, kNames)));
}

std::string terminal_text(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // C1 controls are U+0080..U+009F, C2 80..C2 9F in UTF-8; some terminals obey them.
    const bool c1 =
        c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) {
      ++i;
    } else if ((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t') {
      out += text[i];
    }
  }
  return out;
}

}  // namespace penstock
