#include "service/emulate/emulator.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/xxh3.h"
#include "core/dialects/engine_reports.h"
#include "core/dialects/json_values.h"
#include "core/protocol/errors.h"
#include "core/protocol/sse.h"
#include "service/emulate/answer.h"

namespace penstock::emulate {
namespace {

using namespace std::string_view_literals;
using dialects::EngineKind;
using dialects::JsonBody;
using dialects::WireApi;
using enum ErrorCode;

constexpr std::array kKeys = {"model"sv,
                              "stream"sv,
                              "stream_options"sv,
                              "messages"sv,
                              "prompt"sv,
                              "input"sv,
                              "content"sv,
                              "token_ids"sv,
                              "sampling_params"sv,
                              "max_tokens"sv,
                              "max_completion_tokens"sv,
                              "max_output_tokens"sv,
                              "kv_transfer_params"sv,
                              "bootstrap_host"sv,
                              "bootstrap_port"sv,
                              "bootstrap_room"sv,
                              "cache_salt"sv,
                              "rid"sv,
                              "tools"sv,
                              "ec_transfer_params"sv};
constexpr std::array kInferenceApis = {
    WireApi::kChat,     WireApi::kCompletion, WireApi::kResponses, WireApi::kMessages,
    WireApi::kTokenize, WireApi::kGenerate,   WireApi::kEmbeddings};

HttpResponse json(std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

HttpResponse refuse(int status, std::string message) {
  return json(protocol::error_object(
                  {status < 500 ? kInvalidArgument : kInternal, std::move(message), {}, {}}),
              status);
}

Result<std::uint64_t> whole(std::string_view name, std::string_view value) {
  std::uint64_t out = 0;
  const auto* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, out);
  if (parsed.ec == std::errc() && parsed.ptr == end) return out;
  return fail(kInvalidArgument, fmt::format("{}: \"{}\" is no whole number", name, value));
}

}  // namespace

std::span<const std::string_view> emulated_keys() {
  return kKeys;
}

Status set_option(EmulatorOptions& o, std::string_view text) {
  const auto equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = text.substr(std::min(equals + 1, text.size()));
  if (name == "model") return o.model = value, Status();
  if (name == "key") return o.key = value, Status();
  if (name == "mode") {
    constexpr std::array kModes = {"null"sv, "prefill"sv, "decode"sv, "encode"sv, "language"sv};
    if (std::ranges::find(kModes, value) == kModes.end())
      return fail(kInvalidArgument,
                  "mode: there are null, prefill, decode (of SGLang), encode, language (of vLLM)");
    return o.mode = value, Status();
  }
  if (name == "kv-events") return o.kv_events = value, Status();
  if (name == "kv-replay") return o.kv_replay = value, Status();
  if (name == "kv-topic") return o.kv_topic = value, Status();
  if (name == "version") return o.version = value, Status();
  if (name == "connector") {
    if (value != "nixl" && value != "mooncake")
      return fail(kInvalidArgument, "connector: there are nixl, mooncake (of vLLM)");
    return o.mooncake = value == "mooncake", Status();
  }
  constexpr std::array kNumbers = {"ranks"sv,          "tokens"sv,          "first-token-ms"sv,
                                   "token-ms"sv,       "lease-ms"sv,        "cache-tokens"sv,
                                   "old-forms"sv,      "old-events"sv,      "fault-status"sv,
                                   "fault-delay-ms"sv, "fault-cut-after"sv, "fault-every"sv,
                                   "peer-wait-ms"sv,   "ignore-close"sv,    "fault-lose-events"sv};
  if (std::ranges::find(kNumbers, name) == kNumbers.end())
    return fail(
        kInvalidArgument,
        fmt::format(
            "\"{}\" is no setting; there are model, key, mode, version, connector, kv-events, "
            "kv-replay, kv-topic, {}",
            name, fmt::join(kNumbers, ", ")));
  TRY(const std::uint64_t number, whole(name, value));
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(number, 1'000'000));
  const Duration time = std::chrono::milliseconds(count);
  if (name == "ranks") o.ranks = std::max(1U, count);
  if (name == "tokens") o.tokens = std::max(1U, count);
  if (name == "first-token-ms") o.first_token = time;
  if (name == "token-ms") o.token_time = time;
  if (name == "lease-ms") o.lease = time;
  if (name == "peer-wait-ms") o.peer_wait = time;
  if (name == "ignore-close") o.ignore_close = number != 0;
  if (name == "cache-tokens") o.cache_tokens = static_cast<std::size_t>(number);
  if (name == "old-events") o.old_events = number != 0;
  if (name == "old-forms") o.old_forms = number != 0;
  if (name == "fault-status") o.faults.status = static_cast<int>(std::min(count, 599U));
  if (name == "fault-delay-ms") o.faults.delay = time;
  if (name == "fault-cut-after") o.faults.cut_after = count;
  if (name == "fault-lose-events") o.faults.lose_events = number != 0;
  if (name == "fault-every") o.faults.every = std::max(1U, count);
  return {};
}

std::vector<std::string> emulated_words(std::uint64_t prompt, std::uint32_t count) {
  constexpr std::array kWords = {"water"sv,        "runs"sv,  "through"sv, "the"sv,
                                 "gate"sv,         "and"sv,   "turns"sv,   "wheel"sv,
                                 "na\xC3\xAFve"sv, "light"sv, "\"ok\""sv,  "end"sv};
  std::vector<std::string> words;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::array<std::uint64_t, 2> key = {prompt, i};
    const std::uint64_t draw = xxh3().hash(key.data(), sizeof key);
    words.push_back((i == 0 ? "" : " ") + std::string(kWords[draw % kWords.size()]));
  }
  return words;
}

std::array<double, 4> emulated_embedding(std::uint64_t prompt) {
  std::array<double, 4> out{};
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<double>(prompt >> (16 * i) & 0xFFFF) / 65536.0 - 0.5;
  return out;
}

std::uint64_t prompt_of(const JsonBody& body) {
  for (const std::string_view key :
       {"messages"sv, "prompt"sv, "input"sv, "content"sv, "token_ids"sv}) {
    if (const auto value = body.value(key)) return xxh3().hash(value->data(), value->size());
  }
  return 0;
}

std::vector<TokenId> emulated_tokens(std::string_view json) {
  if (auto ids = dialects::parse_token_ids(json)) return {ids->begin(), ids->end()};
  std::vector<TokenId> tokens(json.size() / sizeof(TokenId));
  if (tokens.empty()) return tokens;
  std::memcpy(tokens.data(), json.data(), tokens.size() * sizeof(TokenId));
  for (TokenId& token : tokens)
    token &= 0x7FFFFFFF;
  return tokens;
}

Emulator::Emulator(Clock& clock, EmulatorOptions options, std::function<double()> unix_seconds,
                   Dial dial)
    : clock_(clock),
      options_(std::move(options)),
      unix_seconds_(std::move(unix_seconds)),
      running_of_rank_(options_.ranks),
      caches_(options_.ranks, BlockCache(options_.cache_tokens / BlockCache::kBlockTokens)),
      dial_(std::move(dial)) {}

std::string Emulator::engine_id(std::size_t rank) const {
  return options_.ranks == 1 ? options_.engine_id
                             : fmt::format("{}_dp{}", options_.engine_id, rank);
}

std::uint64_t Emulator::name_answer() const {
  const std::array<std::uint64_t, 2> key = {options_.hash_seed, requests_};
  return xxh3().hash(key.data(), sizeof key);
}

Duration Emulator::peer_wait() const {
  const bool vllm = options_.kind == EngineKind::kVllm;
  return options_.peer_wait.value_or(std::chrono::seconds(vllm ? 480 : 300));
}

std::size_t Emulator::held() const {
  return held_.size() + static_cast<std::size_t>(std::ranges::count_if(
                            transfers_, [](const auto& each) { return each.second.ready; }));
}

void Emulator::publish_with(Publish publish, std::string endpoints) {
  publish_ = std::move(publish);
  endpoints_ = std::move(endpoints);
}

// vLLM's account of the tokens of a prompt; of completions, which may have several, as a list.
HttpResponse Emulator::render(const HttpRequest& request, bool several) const {
  const auto body = JsonBody::read(request.body, kKeys);
  const auto prompt = body ? body->value(several ? "prompt" : "messages") : std::nullopt;
  if (!prompt) return refuse(400, "there is no prompt");
  const std::string one =
      fmt::format(R"({{"request_id":"render-1","token_ids":[{}],"features":null}})",
                  fmt::join(emulated_tokens(*prompt), ","));
  return json(several ? "[" + one + "]" : one);
}

// Of SGLang; as that one, it refuses to stop or dump what was not started.
HttpResponse Emulator::record_experts(std::string_view path) {
  const bool starts = path.starts_with("/start_");
  if (!starts && !path.starts_with("/stop_") && !path.starts_with("/dump_"))
    return json(R"({"detail":"Not Found"})", 404);
  if (!starts && !records_experts_) return refuse(400, "no record was started");
  if (!path.starts_with("/dump_")) records_experts_ = starts;
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body =
      fmt::format("{} expert distribution record.\n", starts                       ? "Start"
                                                      : path.starts_with("/stop_") ? "Stop"
                                                                                   : "Dump");
  return response;
}

void Emulator::close() {
  for (const auto& [url, peer] : peers_) {
    if (peer) peer->close();
  }
}

Upstream* Emulator::peer(const std::string& url) {
  auto& known = peers_[url];
  if (!known && dial_) known = dial_(url);
  return known.get();
}

// Blocks that a decode leg of another emulator fetches, which frees them.
HttpResponse Emulator::give_held(std::string_view request) {
  const auto found = held_.find(request);
  if (found == held_.end()) return refuse(404, "nobody holds these blocks");
  auto response = json(fmt::format(R"({{"prompt":"{}"}})", found->second.prompt));
  clock_.cancel(found->second.timer);
  held_.erase(found);
  return response;
}

void Emulator::when_left(HttpExchange& exchange, const std::string& rid,
                         std::function<void()> leave) {
  if (!rid.empty()) aborts_[rid] = leave;
  if (options_.ignore_close) leave = [] {};
  exchange.on_disconnect(std::move(leave));
}

// To a decode leg of another emulator; it waits until the prompt is computed.
Task<void> Emulator::give_kv(HttpExchange& exchange) {
  if (const auto blocks = dialects::string_at(exchange.request().body, {"blocks"})) {
    static_cast<void>(co_await exchange.respond(give_held(*blocks)));
    co_return;
  }
  const auto key = dialects::string_at(exchange.request().body, {"key"});
  bool gone = false;
  exchange.on_disconnect([&gone] { gone = true; });
  const Instant until = clock_.now() + peer_wait();
  HttpResponse response = refuse(404, "nobody computes that");
  while (key && !gone && clock_.now() < until) {
    const auto found = transfers_.find(*key);
    if (found != transfers_.end() && found->second.ready) {
      response = json(fmt::format(R"({{"prompt":"{}"}})", found->second.prompt));
      if (found->second.timer != 0) clock_.cancel(found->second.timer);
      transfers_.erase(found);
      break;
    }
    co_await Sleep(clock_, std::chrono::milliseconds(5));
  }
  if (!gone) static_cast<void>(co_await exchange.respond(std::move(response)));
  exchange.on_disconnect([] {});
}

Task<void> Emulator::handle(std::unique_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  std::optional<HttpResponse> response;
  const bool known =
      options_.key.empty() || request.header("authorization") == "Bearer " + options_.key;
  if (!known && request.path != "/health" && request.path != "/emulate/kv") {
    response = refuse(401, "Unauthorized");
  } else if (request.method == "GET") {
    response = get(request);
  } else if (request.path == "/emulate/faults") {
    response = set_faults(request);
  } else if (options_.kind == EngineKind::kVllm && request.path.ends_with("/render")) {
    const std::string_view path = request.path;
    const std::string_view api = path.substr(0, path.rfind('/'));
    if (api == dialects::path_of(WireApi::kChat) || api == dialects::path_of(WireApi::kCompletion))
      response = render(request, api != dialects::path_of(WireApi::kChat));
  } else if (options_.kind == EngineKind::kSglang &&
             request.path.ends_with("_expert_distribution_record")) {
    response = record_experts(request.path);
  } else if (options_.kind == EngineKind::kSglang && request.path == "/abort_request") {
    const auto rid = dialects::string_at(request.body, {"rid"});
    const auto found = rid ? aborts_.find(*rid) : aborts_.end();
    if (found != aborts_.end()) std::exchange(found->second, [] {})();
    response = json("");
  } else if (request.path == "/emulate/kv") {
    co_return co_await give_kv(*exchange);
  } else {
    for (const WireApi api : kInferenceApis) {
      if (request.path != dialects::path_of(api)) continue;
      if (!dialects::speaks(dialects::dialect(options_.kind), api)) break;
      co_return co_await infer(*exchange, api);
    }
  }
  if (!response) response = json(R"({"detail":"Not Found"})", 404);
  static_cast<void>(co_await exchange->respond(std::move(*response)));
}

std::optional<HttpResponse> Emulator::get(const HttpRequest& request) const {
  const std::string& path = request.path;
  const EngineKind kind = options_.kind;
  if (path == "/health") return json(kind == EngineKind::kLlamaCpp ? R"({"status":"ok"})" : "");
  if (path == "/v1/models") {
    const std::string id = dialects::quoted(options_.model);
    return json(
        kind == EngineKind::kLlamaCpp
            ? fmt::format(
                  R"({{"object":"list","data":[{{"id":{},"meta":{{"n_ctx_train":32768}}}}]}})", id)
            : fmt::format(
                  R"({{"object":"list","data":[{{"id":{},"root":{},"max_model_len":32768}}]}})", id,
                  id));
  }
  if (path == "/emulate/stats")
    return json(fmt::format(R"({{"requests":{},"running":{},"held":{},"kv_endpoints":{}}})",
                            requests_, running_, held(), endpoints_));
  if (kind == EngineKind::kVllm && path == "/version")
    return json(fmt::format(R"({{"version":{}}})", dialects::quoted(options_.version)));
  if (kind == EngineKind::kVllm && path == "/query" && options_.mooncake) {
    std::string ids;
    for (std::size_t rank = 0; rank < options_.ranks; ++rank)
      ids += fmt::format(R"({}"{}":{{"engine_id":{}}})", rank == 0 ? "" : ",", rank,
                         dialects::quoted(engine_id(rank)));
    return json("{" + ids + "}");
  }
  if (path == "/metrics" && kind != EngineKind::kLlamaCpp) return metrics();
  if (kind == EngineKind::kSglang) {
    const std::string_view loads_path = options_.old_forms ? "/get_load" : "/v1/loads";
    if (path == loads_path) return loads();
    if (path == "/get_server_info" || path == "/server_info")
      return json(fmt::format(
          R"({{"disaggregation_mode":"{}","disaggregation_bootstrap_port":{},"dp_size":{},"load_balance_method":"{}","version":{}}})",
          options_.mode, options_.bootstrap_port, options_.ranks,
          options_.mode == "null" ? "round_robin" : "follow_bootstrap_room",
          dialects::quoted(options_.version)));
  }
  if (kind == EngineKind::kLlamaCpp && path == "/slots") return loads();
  if (kind == EngineKind::kLlamaCpp && path == "/props")
    return json(
        R"({"default_generation_settings":{"n_ctx":32768},"total_slots":4,"build_info":"emulated"})");
  return std::nullopt;
}

HttpResponse Emulator::metrics() const {
  const bool vllm = options_.kind == EngineKind::kVllm;
  const std::string_view running = vllm ? "vllm:num_requests_running" : "sglang:num_running_reqs";
  const std::string_view waiting = vllm ? "vllm:num_requests_waiting" : "sglang:num_queue_reqs";
  const std::string_view used = !vllm                ? "sglang:token_usage"
                                : options_.old_forms ? "vllm:gpu_cache_usage_perc"
                                                     : "vllm:kv_cache_usage_perc";
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  for (std::size_t rank = 0; rank < running_of_rank_.size(); ++rank) {
    const std::string labels = fmt::format("{{{}=\"{}\",model_name=\"{}\"}}",
                                           vllm ? "engine" : "dp_rank", rank, options_.model);
    response.body +=
        fmt::format("{}{} {}.0\n{}{} 0.0\n{}{} {}\n", running, labels, running_of_rank_[rank],
                    waiting, labels, used, labels, running_of_rank_[rank] > 0 ? 0.25 : 0.0);
  }
  return response;
}

HttpResponse Emulator::loads() const {
  std::string items;
  for (std::size_t rank = 0; rank < running_of_rank_.size(); ++rank) {
    const std::string_view comma = items.empty() ? "" : ",";
    const bool llama = options_.kind == EngineKind::kLlamaCpp;  // it has slots and no ranks
    const std::uint32_t n = llama ? running_ : running_of_rank_[rank];
    if (llama) {
      for (std::uint32_t slot = 0; slot < 4; ++slot)
        items += fmt::format(R"({}{{"id":{},"n_ctx":8192,"is_processing":{}}})",
                             slot == 0 ? "" : ",", slot, slot < n);
      break;
    }
    items +=
        options_.old_forms
            ? fmt::format(R"({}{{"dp_rank":{},"num_reqs":{},"num_waiting_reqs":0,"num_tokens":0}})",
                          comma, rank, n)
            : fmt::format(
                  R"({}{{"dp_rank":{},"num_running_reqs":{},"num_waiting_reqs":0,"token_usage":0.0}})",
                  comma, rank, n);
  }
  const bool wrapped = options_.kind == EngineKind::kSglang && !options_.old_forms;
  return json(wrapped ? fmt::format(R"({{"version":"0.5.6","loads":[{}]}})", items)
                      : fmt::format("[{}]", items));
}

HttpResponse Emulator::set_faults(const HttpRequest& request) {
  Faults faults;
  const std::string_view body = request.body;
  const auto count = [&](std::string_view key) {
    return std::clamp<std::int64_t>(dialects::integer_at(body, {key}).value_or(0), 0, 1'000'000);
  };
  if (!dialects::value_at(body, {"status"}) && !dialects::value_at(body, {"delay_ms"}) &&
      !dialects::value_at(body, {"cut_after"}) && !dialects::value_at(body, {"lose_events"}) &&
      body != "{}")
    return refuse(400, "expected an object with status, delay_ms, cut_after, every, lose_events");
  faults.status = static_cast<int>(std::min<std::int64_t>(count("status"), 599));
  faults.delay = std::chrono::milliseconds(count("delay_ms"));
  if (dialects::value_at(body, {"cut_after"}))
    faults.cut_after = static_cast<std::size_t>(count("cut_after"));
  faults.every = static_cast<std::uint32_t>(std::max<std::int64_t>(1, count("every")));
  faults.lose_events = dialects::value_at(body, {"lose_events"}) == "true";
  options_.faults = faults;
  return json("{}");
}

Task<void> Emulator::wait(Duration time, const bool& gone) {
  constexpr Duration kLook = std::chrono::milliseconds(20);
  for (; time > Duration::zero() && !gone; time -= kLook)
    co_await Sleep(clock_, std::min(time, kLook));
}

bool Emulator::fault_now() {
  return ++requests_ % options_.faults.every == 0;
}

Task<void> Emulator::infer(HttpExchange& exchange, WireApi api) {
  const bool fault = fault_now();
  const Faults faults = fault ? options_.faults : Faults();
  const auto body = JsonBody::read(exchange.request().body, kKeys);
  std::optional<HttpResponse> refusal;
  if (!body) {
    refusal = refuse(400, body.error().message);
  } else if (faults.status != 0) {
    refusal = refuse(faults.status, "a fault that was asked for");
    if (faults.status == 429 || faults.status == 503)
      refusal->headers.push_back({"retry-after", "1"});
  } else if (body->string("model").value_or(options_.model) != options_.model) {
    refusal = json(
        R"({"error":{"message":"The model does not exist.","type":"NotFoundError","param":"model","code":404}})",
        404);
  }
  // Of the older versions.
  if (body && api == WireApi::kTokenize && options_.old_forms && !body->has("prompt") && !refusal)
    refusal = refuse(400, "prompt: Field required");
  struct Running {
    Emulator& self;
    std::size_t rank;
    Running(Emulator& e, std::size_t r) : self(e), rank(r) {
      ++self.running_;
      ++self.running_of_rank_[rank];
    }
    ~Running() {
      --self.running_;
      --self.running_of_rank_[rank];
    }
  };
  std::size_t rank = requests_ % options_.ranks;
  if (body && options_.kind == EngineKind::kSglang && options_.mode != "null" && !refusal &&
      api != WireApi::kTokenize) {
    auto room = body->value("bootstrap_room");
    // Of several prompts each has one.
    if (room && room->starts_with('[')) room = dialects::first_element(*room);
    const auto number = room ? whole("bootstrap_room", *room) : Result<std::uint64_t>(0);
    if (!room || !number || !body->has("bootstrap_host") || !body->has("bootstrap_port")) {
      refusal =
          refuse(400, "a server of this disaggregation mode needs bootstrap_host, _port, _room");
    } else if (options_.mode == "prefill") {
      rank = *number % options_.ranks;
    }
  }
  if (const auto pinned = whole("rank", exchange.request().header("x-data-parallel-rank")))
    rank = *pinned % options_.ranks;
  const Running running(*this, rank);
  bool gone = false;
  const std::string rid = body ? body->string("rid").value_or("") : "";
  when_left(exchange, rid, [&gone] { gone = true; });
  co_await wait(faults.delay, gone);
  if (refusal) {
    if (!gone) static_cast<void>(co_await exchange.respond(std::move(*refusal)));
  } else if (!gone) {
    Answer answer(*this, exchange, *body, api, {faults, rank}, gone);
    co_await answer.run();
  }
  exchange.on_disconnect([] {});
  aborts_.erase(rid);
}

}  // namespace penstock::emulate
