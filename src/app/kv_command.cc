// penstock kv: questions to the KV daemon of this host, and its upkeep.
#include <fmt/format.h>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/kv_report.h"
#include "app/kv_tool.h"
#include "app/kv_transfer.h"
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
  std::vector<std::string_view> names = {"warm", "export", "import"};
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

bool has_bad_blocks(const std::string& verify) {
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(verify, error);
  if (error || !parsed.is_object()) return true;
  const auto* const bad = parsed.get_object().if_contains("bad_blocks");
  return bad == nullptr || bad->to_number<std::int64_t>() > 0;
}

// The first page of roots with those of the following pages added.
Result<std::string> all_roots(const std::string& first, kv::KvSession& session) {
  boost::system::error_code error;
  boost::json::value all = boost::json::parse(first, error);
  if (error || !all.is_object()) return first;
  boost::json::value next = all.get_object()["next"];
  while (next.is_string()) {
    const boost::json::object page{{"after", next}, {"limit", 1000}};
    TRY(const std::string more,
        session.admin("ls", boost::json::serialize(page), kQuestionTimeout));
    boost::json::value parsed = boost::json::parse(more, error);
    if (error || !parsed.is_object()) break;
    for (boost::json::value& root : parsed.get_object()["roots"].as_array())
      all.get_object()["roots"].as_array().push_back(std::move(root));
    next = parsed.get_object()["next"];
  }
  return boost::json::serialize(all);
}

Status print_answer(const Options& options, std::string_view question, const std::string& answer,
                    kv::KvSession& session) {
  std::string text;
  if (options.json) {
    text = pretty_json(answer);
  } else if (question == "stat") {
    TRY(const std::string first, session.admin("ls", R"({"limit":1000})", kQuestionTimeout));
    TRY(const std::string names, all_roots(first, session));
    text = kv_stat_text(answer, names);
  } else if (question == "ls") {
    TRY(const std::string all, all_roots(answer, session));
    text = kv_list_text(all);
  } else if (question == "explain") {
    text = kv_explain_text(answer);
  } else if (question == "verify") {
    text = kv_verify_text(answer);
  } else if (question == "gc") {
    text = kv_gc_text(answer);
  } else {
    text = pretty_json(answer);
  }
  TRY(const int printed, print_data(text));
  static_cast<void>(printed);
  return {};
}

}  // namespace

Result<std::unique_ptr<kv::KvSession>> open_kv_tool(const Options& options) {
  // A tool sees no blocks, so it needs no secret; the daemon looks at it when it is there.
  KvSecret secret{};
  if (auto found = read_kv_secret(options.kv_secret_file); found) {
    secret = *found;
  } else if (found.error().code != ErrorCode::kNotFound) {
    return std::unexpected(std::move(found).error());
  }
  return kv::KvSession::connect(options.kv_socket, "tool", "penstock kv",
                                kvcache::KeyChain(secret).key_check(), kHelloTimeout);
}

Result<int> run_kv(const Options& options) {
  if (!options.words.empty() && options.words[0] == "warm") return run_kv_warm(options);
  if (!options.words.empty() && (options.words[0] == "export" || options.words[0] == "import"))
    return run_kv_transfer(options);
  TRY(const KvQuestion* const question, find_question(options));
  TRY(const auto session, open_kv_tool(options));
  boost::json::object arguments;
  if (question->takes_word) arguments["request"] = options.words[1];
  if (options.dry_run) arguments["dry_run"] = true;
  if (question->name == "verify") arguments["tier"] = options.kv_tier;
  std::unique_ptr<ProgressBar> bar;
  TRY(const std::string answer,
      session->admin(std::string(question->name), boost::json::serialize(arguments),
                     question->timeout, [&](std::string_view part) {
                       const auto [done, total] = kv_verify_progress(part);
                       if (bar == nullptr) bar = std::make_unique<ProgressBar>("verify", total);
                       bar->update(done);
                     }));
  bar.reset();
  // A tier with damaged blocks is a finding, for scripts too.
  const int code = question->name == "verify" && has_bad_blocks(answer) ? 1 : 0;
  TRY_STATUS(print_answer(options, question->name, answer, *session));
  return code;
}

}  // namespace penstock
