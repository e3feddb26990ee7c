// `penstock eval --suite skills`: asks every held-out item and reports the share of right answers
// per skill.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "app/api_client.h"
#include "app/commands.h"
#include "app/console.h"
#include "app/own_server.h"
#include "app/text_layout.h"
#include "evaluate/score.h"
#include "evaluate/skill_items.h"
#include "io/files/files.h"

namespace penstock {
namespace {

namespace json = boost::json;
using evaluate::Score;
using evaluate::SkillItem;

constexpr Bytes kSuiteFileMax{std::int64_t{256} << 20};

Result<std::vector<SkillItem>> load_suite(const std::string& folder, std::uint32_t per_skill) {
  std::error_code error;
  std::vector<std::string> paths;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".jsonl") paths.push_back(it->path().string());
  }
  if (error)
    return fail(ErrorCode::kNotFound,
                fmt::format("cannot read the suite's folder \"{}\": {}; give --suite-dir DIR",
                            folder, error.message()));
  std::ranges::sort(paths);
  std::vector<SkillItem> items;
  std::map<std::string, std::uint32_t> taken;
  for (const auto& path : paths) {
    TRY(const auto text, read_file(path, kSuiteFileMax));
    TRY(auto some, evaluate::parse_items(text, path));
    for (auto& item : some) {
      if (per_skill == 0 || taken[item.skill]++ < per_skill) items.push_back(std::move(item));
    }
  }
  if (items.empty())
    return fail(ErrorCode::kNotFound, fmt::format("no items in {}/*.jsonl", folder));
  return items;
}

using Outcome = std::optional<Result<evaluate::Verdict>>;

constexpr auto kPauseMin = std::chrono::milliseconds(250);
constexpr auto kPauseMax = std::chrono::seconds(10);
constexpr auto kPatience = std::chrono::minutes(10);  // with a server that is busy

// How good the answers are is asked, not how fast: a busy server is asked again, ever later.
Result<std::string> ask(const ApiTarget& target, const std::string& body) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::chrono::milliseconds pause = kPauseMin;
  for (;;) {
    auto answer = complete(target, body);
    if (answer || error_info(answer.error().code).retry != RetryAdvice::kAfterDelay ||
        std::chrono::steady_clock::now() + pause > end)
      return answer;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::milliseconds>(2 * pause, kPauseMax);
  }
}

// Asks all items, `concurrency` at a time; outcomes in the order of the items.
std::vector<Outcome> ask_all(const ApiTarget& target, const std::string& model,
                             const std::vector<SkillItem>& items, const Options& options) {
  std::vector<Outcome> outcomes(items.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::condition_variable advanced;
  std::size_t done = 0;  // guarded by mutex
  const auto work = [&] {
    for (std::size_t i = next++; i < items.size(); i = next++) {
      const auto body = evaluate::request_body(items[i], model, options.max_tokens);
      auto answer = ask(target, body);
      if (answer) {
        outcomes[i] = evaluate::judge(items[i], *answer);
      } else {
        outcomes[i] = std::unexpected(std::move(answer).error());
      }
      const std::lock_guard lock(mutex);
      ++done;
      advanced.notify_one();
    }
  };
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < std::min<std::size_t>(options.concurrency, items.size()); ++i)
    workers.emplace_back(work);
  ProgressBar bar("eval " + options.suite, items.size());
  std::unique_lock lock(mutex);
  while (done < items.size()) {
    advanced.wait(lock);
    bar.update(done);
  }
  return outcomes;
}

struct Report {
  std::map<std::string, Score> skills;
  Score total;
  std::optional<Error> first_error;
};

Report score(const std::vector<SkillItem>& items, const std::vector<Outcome>& outcomes,
             bool show_wrong) {
  Report report;
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto& skill = report.skills[items[i].skill];
    const auto& outcome = *outcomes[i];
    for (auto* each : {&skill, &report.total}) {
      each->items += outcome ? 1 : 0;
      each->right += outcome && outcome->right ? 1 : 0;
      each->errors += outcome ? 0 : 1;
    }
    if (!outcome && !report.first_error) report.first_error = outcome.error();
    if (show_wrong && outcome && !outcome->right)
      fmt::print(stderr, "{}: got {}\n", items[i].id, json::serialize(json::string(outcome->got)));
  }
  return report;
}

json::object score_json(const Score& s) {
  const auto interval = evaluate::wilson_interval(s.right, s.items);
  return {{"items", s.items},       {"right", s.right},         {"accuracy", s.accuracy()},
          {"low_95", interval.low}, {"high_95", interval.high}, {"errors", s.errors}};
}

std::string report_json(const Report& report, const Options& o, const std::string& model,
                        double seconds) {
  json::array skills;
  for (const auto& [name, each] : report.skills) {
    auto object = score_json(each);
    object["skill"] = name;
    skills.push_back(std::move(object));
  }
  return json::serialize(json::object{{"suite", o.suite},
                                      {"model", model},
                                      {"skills", std::move(skills)},
                                      {"total", score_json(report.total)},
                                      {"seconds", seconds}});
}

std::string report_table(const Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"skill", "n", "right", "accuracy", "95 % interval", "errors"}};
  const auto row = [&](const std::string& name, const Score& s) {
    const auto interval = evaluate::wilson_interval(s.right, s.items);
    rows.push_back({name, std::to_string(s.items), std::to_string(s.right),
                    fmt::format("{:.1f} %", s.accuracy() * 100),
                    fmt::format("{:.1f} - {:.1f}", interval.low * 100, interval.high * 100),
                    std::to_string(s.errors)});
  };
  for (const auto& [name, each] : report.skills)
    row(name, each);
  row("all", report.total);
  return table(rows, {false, true, true, true, true, true});
}

}  // namespace

Result<int> run_eval(const Options& options) {
  TRY(const auto items, load_suite(options.suite_dir, options.items_max));
  std::optional<OwnServer> server;
  ApiTarget target{options.url, key_from_environment(), options.ca_file};
  if (options.url.empty()) {
    TRY(server, OwnServer::start(options));
    target = {server->url(), {}, {}};
  }
  TRY(const auto models, list_models(target));
  if (models.empty()) return fail(ErrorCode::kUnavailable, "the server has no model");
  const std::string model = options.chat_model.empty() ? models.front() : options.chat_model;
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = ask_all(target, model, items, options);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto report = score(items, outcomes, options.verbose);
  if (report.first_error)
    fmt::print(stderr, "penstock eval: {} items got no answer; the first: {}\n",
               report.total.errors, report.first_error->message);
  TRY_STATUS(print_data(options.json ? report_json(report, options, model, seconds)
                                     : report_table(report)));
  return report.total.errors == 0 ? 0 : 1;
}

}  // namespace penstock
