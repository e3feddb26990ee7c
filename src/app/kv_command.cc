// penstock kv: questions to the KV daemon of this host, and its upkeep.
#include <fmt/format.h>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "app/commands.h"
#include "app/console.h"
#include "app/kv_report.h"
#include "app/suggest.h"
#include "core/kvcache/key_chain.h"
#include "io/files/kv_secret.h"
#include "io/kv/kv_session.h"

namespace penstock {
namespace {

constexpr Duration kHelloTimeout = std::chrono::seconds(5);
constexpr Duration kQuestionTimeout = std::chrono::seconds(30);
constexpr Duration kWalkTimeout = std::chrono::hours(24);  // verify reads everything

struct KvQuestion {
  std::string_view name;
  bool takes_word;
  Duration timeout;
};
constexpr KvQuestion kQuestions[] = {
    {"stat", false, kQuestionTimeout},   {"ls", false, kQuestionTimeout},
    {"explain", true, kQuestionTimeout}, {"verify", false, kWalkTimeout},
    {"gc", false, kWalkTimeout},         {"flush", false, kWalkTimeout},
};

Result<const KvQuestion*> find_question(const Options& options) {
  if (options.words.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "say what to do, such as `penstock kv stat`. See `penstock kv --help`");
  }
  std::vector<std::string_view> names;
  for (const KvQuestion& question : kQuestions) {
    names.push_back(question.name);
    if (question.name != options.words[0]) continue;
    if (question.takes_word != (options.words.size() == 2)) {
      return fail(ErrorCode::kInvalidArgument,
                  question.takes_word
                      ? "give the id of a request: `penstock kv explain REQUEST`; it is in the "
                        "access log and in the answer's x-request-id header"
                      : fmt::format("unexpected argument \"{}\"", options.words.back()));
    }
    return &question;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown: kv {}{} See `penstock kv --help`", options.words[0],
                          did_you_mean(options.words[0], names)));
}

}  // namespace

Result<int> run_kv(const Options& options) {
  TRY(const KvQuestion* const question, find_question(options));
  TRY(const auto secret, read_kv_secret(options.kv_secret_file));
  TRY(const auto session,
      kv::KvSession::connect(options.kv_socket, "tool", "penstock kv",
                             kvcache::KeyChain(secret).key_check(), kHelloTimeout));
  boost::json::object arguments;
  if (question->takes_word) arguments["request"] = options.words[1];
  if (options.dry_run) arguments["dry_run"] = true;
  const bool shows_progress = is_terminal(stderr);
  TRY(const std::string answer,
      session->admin(std::string(question->name), boost::json::serialize(arguments),
                     question->timeout, [&](std::string_view part) {
                       if (shows_progress) fmt::print(stderr, "\r\x1b[K{}", part);
                     }));
  if (shows_progress) fmt::print(stderr, "\r\x1b[K");
  if (options.json) return print_data(pretty_json(answer));
  if (question->name == "stat") {
    TRY(const std::string names, session->admin("ls", R"({"limit":1000})", kQuestionTimeout));
    return print_data(kv_stat_text(answer, names));
  }
  if (question->name == "ls") return print_data(kv_list_text(answer));
  if (question->name == "explain") return print_data(kv_explain_text(answer));
  if (question->name == "verify") return print_data(kv_verify_text(answer));
  return print_data(pretty_json(answer));
}

}  // namespace penstock
