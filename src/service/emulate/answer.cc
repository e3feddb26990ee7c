#include "service/emulate/answer.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/xxh3.h"
#include "core/dialects/ec_legs.h"
#include "core/dialects/json_values.h"
#include "core/protocol/errors.h"
#include "core/protocol/sse.h"
#include "service/emulate/cache_events.h"

namespace penstock::emulate {
namespace {

using dialects::JsonBody;
using dialects::quoted;
using dialects::WireApi;

}  // namespace

Emulator::Answer::Answer(Emulator& emulator, HttpExchange& exchange, const JsonBody& body,
                         WireApi api, const Setting& setting, bool& gone)
    : emulator_(emulator),
      exchange_(exchange),
      body_(body),
      api_(api),
      faults_(setting.faults),
      rank_(setting.rank),
      gone_(gone),
      answer_id_(emulator.name_answer()),
      tool_(tool_of(body)),
      prompt_(prompt_of(body)),
      tokens_(emulator.options_.tokens) {
  for (const std::string_view key : {"messages", "prompt", "input", "content", "token_ids"}) {
    if (const auto value = body.value(key)) prompt_ids_ = emulated_tokens(*value);
  }
  prompt_tokens_ = std::max<std::uint64_t>(1, prompt_ids_.size());
  for (const std::string_view key : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    const auto value = api == WireApi::kGenerate
                           ? dialects::value_at(body.value("sampling_params").value_or(""), {key})
                           : body.value(key);
    const auto limit = value ? dialects::integer_at(*value, {}) : std::nullopt;
    if (!limit || *limit < 1 || *limit >= tokens_) continue;
    tokens_ = static_cast<std::uint32_t>(*limit);
    cut_short_ = true;
  }
}

Emulator::Answer::~Answer() {
  // What was not computed nobody gets.
  if (!peer_url_.empty() || transfer_.empty() || offered_) return;
  emulator_.transfers_.erase(transfer_);
}

// An encode server takes one item of media and says where its embeddings are; one without an
// encoder of its own needs to be told that of each.
bool Emulator::Answer::read_media() {
  const auto& options = emulator_.options_;
  if (options.mode != "encode" && options.mode != "language") return true;
  const auto items = dialects::media_items(body_);
  const auto name = [](std::string_view item) {
    return fmt::format("{:016x}", xxh3().hash(item.data(), item.size()));
  };
  if (options.mode == "encode") {
    if (items.size() == 1 && tokens_ == 1 && !body_.is_true("stream")) {
      encoded_ = fmt::format(
          R"({{"{}":{{"metadata":{{"grid":[1,2,2]}},"peer_host":"127.0.0.1","peer_port":{},"size_bytes":{}}}}})",
          name(items[0]), options.bootstrap_port, items[0].size());
      return true;
    }
    refusal_ = "an encode leg has one item of media, computes one token and does not stream";
    return false;
  }
  const auto params = body_.value("ec_transfer_params");
  for (const std::string_view item : items) {
    if (params && dialects::integer_at(*params, {name(item), "peer_port"})) continue;
    refusal_ = "there is no encoding of an item of media, and no encoder here";
    return false;
  }
  return true;
}

void Emulator::Answer::read_room() {
  const auto one = [&](std::string_view key) {
    const std::string_view value = body_.value(key).value_or("");
    return value.starts_with('[') ? dialects::first_element(value).value_or("") : value;
  };
  transfer_ = fmt::format("room {}", one("bootstrap_room"));
  if (emulator_.options_.mode == "prefill") {
    tokens_ = 1;
    return;
  }
  peer_url_ =
      fmt::format("http://{}:{}", dialects::decode_string(one("bootstrap_host")).value_or(""),
                  one("bootstrap_port"));
}

bool Emulator::Answer::read_mooncake(std::string_view params) {
  const auto id = dialects::string_at(params, {"transfer_id"});
  if (!id) {
    refusal_ = "kv_transfer_params without transfer_id: this engine has the Mooncake connector";
    return false;
  }
  if (prefill_leg_) {
    transfer_ = fmt::format("{} {}", emulator_.engine_id(rank_), *id);
    return true;
  }
  const auto url = dialects::string_at(params, {"remote_bootstrap_addr"});
  const auto engine = dialects::string_at(params, {"remote_engine_id"});
  if (!url || !engine) {
    refusal_ = "kv_transfer_params without remote_bootstrap_addr and remote_engine_id";
    return false;
  }
  peer_url_ = *url;
  transfer_ = fmt::format("{} {}", *engine, *id);
  return true;
}

bool Emulator::Answer::read_legs() {
  if (emulator_.options_.kind == dialects::EngineKind::kSglang) {
    if (emulator_.options_.mode != "null") read_room();
    return true;
  }
  if (!read_media()) return false;
  const auto params = body_.value("kv_transfer_params");
  if (!params || *params == "null" || emulator_.options_.kind != dialects::EngineKind::kVllm)
    return true;
  if (dialects::value_at(*params, {"do_remote_decode"}) == "true") {
    prefill_leg_ = true;
    if (tokens_ == 1 && !body_.is_true("stream"))
      return !emulator_.options_.mooncake || read_mooncake(*params);
    refusal_ = "a prefill leg computes one token and does not stream";
    return false;
  }
  if (dialects::value_at(*params, {"do_remote_prefill"}) != "true") return true;
  if (emulator_.options_.mooncake) return read_mooncake(*params);
  // What the named blocks hold is what is decoded, whatever the prompt says.
  const auto blocks = dialects::value_at(*params, {"remote_block_ids"});
  const auto group = blocks ? dialects::first_element(*blocks) : std::nullopt;
  const auto block = group ? dialects::first_element(*group) : std::nullopt;
  const auto id = block ? dialects::integer_at(*block, {}) : std::nullopt;
  if (!id) {
    refusal_ = "kv_transfer_params without remote_block_ids";
    return false;
  }
  blocks_ = dialects::string_at(*params, {"remote_request_id"}).value_or("");
  peer_url_ =
      fmt::format("http://{}:{}", dialects::string_at(*params, {"remote_host"}).value_or(""),
                  dialects::integer_at(*params, {"remote_port"}).value_or(0));
  const auto expiry = dialects::number_at(*params, {"remote_blocks_expiry_time"});
  const bool freed = expiry && emulator_.unix_seconds_() > *expiry;
  // The id is the low bits of the prompt's hash (below); freed blocks hold another one's KV.
  const bool own = static_cast<std::uint64_t>(*id) == prompt_ >> 11;
  if (freed || !own) prompt_ = ~static_cast<std::uint64_t>(*id);
  cached_tokens_ = prompt_tokens_;
  return true;
}

// Holds the blocks of this prompt until the lease ends; the params that name them.
std::string Emulator::Answer::hold_blocks() {
  const std::uint64_t id = prompt_ >> 11;  // exact in a double, as JSON readers may make of it
  const Duration lease = emulator_.options_.lease;
  const std::string name =
      fmt::format("{}-{}", exchange_.request().header("x-request-id"), emulator_.requests_);
  emulator_.held_[name] = {
      prompt_, emulator_.clock_.call_at(emulator_.clock_.now() + lease,
                                        [&e = emulator_, name] { e.held_.erase(name); })};
  const double expiry = emulator_.unix_seconds_() + std::chrono::duration<double>(lease).count();
  return fmt::format(
      R"({{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{}]],"remote_engine_id":"emulated","remote_request_id":{},"remote_host":"127.0.0.1","remote_port":{},"tp_size":1,"remote_num_tokens":{},"remote_blocks_expiry_time":{:.6f}}})",
      id, quoted(name), emulator_.options_.bootstrap_port, prompt_tokens_, expiry);
}

// And says what has changed.
void Emulator::Answer::use_cache() {
  if (api_ == WireApi::kTokenize || api_ == WireApi::kEmbeddings) return;
  const EmulatorOptions& options = emulator_.options_;
  const std::string salt = body_.string("cache_salt").value_or("");
  const std::uint64_t root = options.hash_seed ^ xxh3().hash(salt.data(), salt.size());
  const BlockCache::Used used = emulator_.caches_[rank_].use(prompt_ids_, root);
  cached_tokens_ =
      std::max(cached_tokens_, std::min(used.held * BlockCache::kBlockTokens, prompt_tokens_));
  if (!emulator_.publish_) return;
  auto payload = cache_events(
      {emulator_.unix_seconds_(), rank_, !options.old_forms && !options.old_events, salt},
      prompt_ids_, used);
  if (payload) emulator_.publish_(rank_, std::move(*payload), options.faults.lose_events);
}

// Frees them there. Blocks that are not there any more hold another prompt's KV; where the other
// engine can't be reached, the lease alone says whether they are.
Task<void> Emulator::Answer::fetch_blocks() {
  Upstream* const peer = emulator_.peer(peer_url_);
  if (peer == nullptr || blocks_.empty()) co_return;
  const auto call = peer->call({"POST",
                                "/emulate/kv",
                                {{"content-type", "application/json"}},
                                fmt::format(R"({{"blocks":{}}})", quoted(blocks_))});
  const Instant until = emulator_.clock_.now() + std::chrono::seconds(5);
  const auto head = co_await call->head(until);
  if (head && head->status != 200) prompt_ = ~prompt_;
  // Read, it gives the connection back.
  if (head) static_cast<void>(co_await call->read(until));
}

Task<bool> Emulator::Answer::fetch() {
  emulator_.when_left(exchange_, body_.string("rid").value_or(""), [this] {
    gone_ = true;
    if (peer_call_ != nullptr) peer_call_->cancel();
  });
  Upstream* const peer = emulator_.peer(peer_url_);
  const Instant until = emulator_.clock_.now() + emulator_.peer_wait();
  while (!gone_ && emulator_.clock_.now() < until) {
    if (peer != nullptr && co_await fetch_from(*peer, until)) co_return true;
    co_await emulator_.wait(std::chrono::milliseconds(20), gone_);
  }
  co_return false;
}

Task<bool> Emulator::Answer::fetch_from(Upstream& peer, Instant until) {
  const auto call = peer.call({"POST",
                               "/emulate/kv",
                               {{"content-type", "application/json"}},
                               fmt::format(R"({{"key":{}}})", quoted(transfer_))});
  peer_call_ = call.get();
  const auto head = co_await call->head(until);
  const auto body = head ? co_await call->read(until) : Result<std::string>();
  peer_call_ = nullptr;
  const auto text = body ? dialects::string_at(*body, {"prompt"}) : std::nullopt;
  if (!head || head->status != 200 || !text) co_return false;
  // What the prefill computed is what is decoded, whatever the prompt says.
  prompt_ = std::strtoull(text->c_str(), nullptr, 10);
  cached_tokens_ = prompt_tokens_;
  co_return true;
}

Task<bool> Emulator::Answer::offer() {
  auto& transfers = emulator_.transfers_;
  transfers[transfer_] = {true, prompt_, 0};
  if (emulator_.options_.kind == dialects::EngineKind::kVllm) {
    offered_ = true;
    transfers[transfer_].timer =
        emulator_.clock_.call_at(emulator_.clock_.now() + emulator_.peer_wait(),
                                 [&transfers, name = transfer_] { transfers.erase(name); });
    co_return true;
  }
  const Instant until = emulator_.clock_.now() + emulator_.peer_wait();
  while (transfers.contains(transfer_) && !gone_ && emulator_.clock_.now() < until)
    co_await emulator_.wait(std::chrono::milliseconds(5), gone_);
  co_return !transfers.contains(transfer_);
}

Task<void> Emulator::Answer::refuse(int status) {
  HttpResponse response;
  response.status = status;
  response.body = protocol::error_object(
      {status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kInternal, refusal_, {}, {}});
  static_cast<void>(co_await exchange_.respond(std::move(response)));
}

Task<void> Emulator::Answer::run() {
  if (!read_legs()) co_return co_await refuse(400);
  const bool fetches = !transfer_.empty() && !peer_url_.empty();
  if (!blocks_.empty()) co_await fetch_blocks();
  bool met = !fetches || co_await fetch();
  if (api_ != WireApi::kTokenize) co_await emulator_.wait(emulator_.options_.first_token, gone_);
  if (gone_) co_return;
  if (!fetches) use_cache();
  if (!transfer_.empty() && !fetches) met = co_await offer();
  if (gone_) co_return;
  if (!met) {
    refusal_ = "the other leg did not come in time";
    co_return co_await refuse(500);
  }
  if (body_.is_true("stream")) {
    co_await stream();
  } else {
    co_await whole();
  }
}

Task<void> Emulator::Answer::whole() {
  std::string text;
  const bool speaks = api_ != WireApi::kTokenize && api_ != WireApi::kEmbeddings;
  for (const std::string& word : emulated_words(prompt_, speaks ? tokens_ : 0)) {
    if (!text.empty()) co_await emulator_.wait(emulator_.options_.token_time, gone_);
    if (gone_) co_return;
    text += piece(word);
    ++words_sent_;
  }
  HttpResponse response;
  response.body = whole_body(text);
  if (!encoded_.empty()) {
    response.body.pop_back();
    response.body += ",\"ec_transfer_params\":" + encoded_ + "}";
  }
  if (prefill_leg_ && transfer_.empty()) {
    response.body.pop_back();
    response.body += ",\"kv_transfer_params\":" + hold_blocks() + "}";
  }
  if (!faults_.cut_after) {
    static_cast<void>(co_await exchange_.respond(std::move(response)));
    co_return;
  }
  static_cast<void>(co_await send(std::move(response.body)));
}

Task<bool> Emulator::Answer::send(std::string bytes) {
  if (gone_) co_return false;
  if (!std::exchange(began_, true))
    exchange_.begin_stream(
        200, body_.is_true("stream") ? std::string(protocol::kSseContentType) : "application/json",
        {});
  const bool cut = faults_.cut_after && sent_ + bytes.size() > *faults_.cut_after;
  if (cut) bytes.resize(*faults_.cut_after - sent_);
  sent_ += bytes.size();
  if (!bytes.empty() && !co_await exchange_.write(std::move(bytes))) co_return false;
  co_return !cut;  // unfinished, the exchange cuts the connection
}

Task<void> Emulator::Answer::stream() {
  if (!co_await send(first_events())) co_return;
  std::string text;
  for (const std::string& word : emulated_words(prompt_, tokens_)) {
    if (!text.empty()) co_await emulator_.wait(emulator_.options_.token_time, gone_);
    const std::string next = piece(word);
    if (!co_await send(word_event(next))) co_return;
    ++words_sent_;
    text += next;
  }
  if (!co_await send(last_events(text))) co_return;
  static_cast<void>(co_await exchange_.finish());
}

}  // namespace penstock::emulate
