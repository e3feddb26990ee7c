// penstock kv warm: a prompt is computed through the API, so that it is kept.
#include <fmt/format.h>
#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "app/api_client.h"
#include "app/console.h"
#include "app/kv_tool.h"
#include "engine/kv_pool.h"
#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Duration kFlushTimeout = std::chrono::hours(1);
constexpr Duration kQuestionTimeout = std::chrono::seconds(30);
// The engine gives its blocks away after its answer; it may be busy.
constexpr int kAsksMax = 20;
constexpr auto kPause = std::chrono::milliseconds(200);

struct Usage {
  std::int64_t prompt = 0;
  std::int64_t cached = 0;
};

// The body of a request that computes a prompt and hardly anything else.
Result<std::string> warming_body(const std::string& text, const std::string& model) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  boost::json::object body;
  if (!error && value.is_object() && value.get_object().contains("messages")) {
    body = value.get_object();
  } else {
    body["messages"] = {{{"role", "user"}, {"content", text}}};
  }
  if (!body.contains("model")) body["model"] = model;
  for (const char* ours : {"stream", "stream_options", "max_completion_tokens", "n"})
    body.erase(ours);
  body["max_tokens"] = 1;
  return boost::json::serialize(body);
}

Result<Usage> ask(const ApiTarget& target, const std::string& body) {
  TRY(const std::string answer, complete(target, body));
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(answer, error);
  const auto* const usage =
      error || !parsed.is_object() ? nullptr : parsed.get_object().if_contains("usage");
  if (usage == nullptr) return fail(ErrorCode::kDataLoss, "the server's answer has no usage");
  return Usage{usage->at("prompt_tokens").to_number<std::int64_t>(),
               usage->at("prompt_tokens_details").at("cached_tokens").to_number<std::int64_t>()};
}

// Tokens of a prompt that a hit can give: whole blocks, and at least one token is computed.
std::int64_t tokens_kept(std::int64_t prompt) {
  return std::max<std::int64_t>(prompt - 1, 0) / engine::kBlockTokens * engine::kBlockTokens;
}

// Asks again until all of it is a hit, which is its second use, too; then waits for the disk.
Result<Usage> wait_until_kept(const ApiTarget& target, const std::string& body, Usage usage,
                              kv::KvSession& daemon) {
  for (int asks = 0; usage.cached < tokens_kept(usage.prompt); ++asks) {
    if (asks == kAsksMax) {
      return fail(ErrorCode::kDeadlineExceeded,
                  fmt::format("only {} of the prompt's {} tokens are hits by now; `penstock kv "
                              "stat` says what stores were refused",
                              usage.cached, usage.prompt));
    }
    std::this_thread::sleep_for(kPause);
    TRY_STATUS(daemon.admin("flush", "", kFlushTimeout));
    TRY(usage, ask(target, body));
  }
  TRY_STATUS(daemon.admin("flush", "", kFlushTimeout));
  return usage;
}

bool has_disk(kv::KvSession& daemon) {
  const auto stat = daemon.admin("stat", "", kQuestionTimeout);
  boost::system::error_code error;
  const boost::json::value parsed = stat ? boost::json::parse(*stat, error) : boost::json::value();
  const auto* const disk = parsed.is_object() ? parsed.get_object().if_contains("disk") : nullptr;
  return disk != nullptr && disk->is_object() && disk->at("in_service").as_bool();
}

}  // namespace

Result<int> run_kv_warm(const Options& options) {
  if (options.words.size() != 2) {
    return fail(ErrorCode::kInvalidArgument,
                "give a file: `penstock kv warm FILE`. It holds the text of a prompt, or the JSON "
                "body of a chat completion with its messages and tools");
  }
  TRY(const std::string text, read_file(options.words[1], Bytes(32 << 20)));
  const ApiTarget target{options.url.empty() ? "http://127.0.0.1:8080" : options.url,
                         key_from_environment(), options.ca_file, true};
  TRY(const auto models, list_models(target));
  if (models.empty()) return fail(ErrorCode::kModelNotFound, "the server lists no model");
  TRY(const std::string body, warming_body(text, models[0]));
  // Before the prompt is computed: what is missing is said at once.
  std::unique_ptr<kv::KvSession> daemon;
  if (options.wait) {
    TRY(daemon, open_kv_tool(options));
  }
  TRY(const Usage first, ask(target, body));
  Usage last = first;
  bool is_on_disk = false;
  if (options.wait) {
    TRY(last, wait_until_kept(target, body, first, *daemon));
    is_on_disk = has_disk(*daemon);
  }
  if (options.json) {
    boost::json::object out{{"prompt_tokens", first.prompt}, {"cached_before", first.cached}};
    if (options.wait) {
      out["cached_now"] = last.cached;
      out["disk_written"] = is_on_disk;
    }
    return print_data(pretty_json(boost::json::serialize(out)));
  }
  std::string said =
      fmt::format("{} tokens of prompt were offered to the cache; {} of them were there already",
                  first.prompt, first.cached);
  if (options.wait) {
    said += fmt::format("; {} are hits now, {}", last.cached,
                        is_on_disk ? "and the disk has written what it takes"
                                   : "from memory only: there is no disk tier in service");
  }
  return print_data(said);
}

}  // namespace penstock
