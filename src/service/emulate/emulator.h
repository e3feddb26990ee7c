// Emulator: the wire protocol of vLLM, SGLang or llama.cpp in front of a timing model, for trying a
// deployment, and a gateway's faults, without a GPU.
//
// It answers the routes that the engine has, in its shapes: health, model list, load reports (old
// forms too), Chat Completions, Completions, Responses, Messages, tokenize. The text is a function
// of the prompt alone, as greedy decoding is, so every emulator of one model gives the same answer
// and a wrong answer shows. Tokens come at set times. Each rank has a prefix cache, and usage says
// how much of a prompt was in it. As vLLM's prefill leg (kv_transfer_params
// with do_remote_decode) it computes one token, names its blocks and holds them until the lease
// ends or a decode leg of another emulator has fetched them (POST /emulate/kv to host and port of
// the params), which it does as soon as it has its request; a decode leg that comes with blocks
// whose lease is over, or that were fetched before, gets what then lies in them: wrong text, with
// 200, as the real one does. As an SGLang server of a disaggregation mode it takes only
// requests with host, port and room, and a prefill one works on the rank that the room names.
//
// Where both legs run at once (SGLang; vLLM with connector=mooncake), decode fetches the prompt
// from the prefill emulator, another process at the address it was told (POST /emulate/kv), by the
// room or by transfer and engine id. One that names what nobody has waits, as the real ones do: 300
// s, or 480 s with Mooncake, whose engine ids are others after every start. So a gateway that pairs
// wrongly, or lets a leg wait whose other one has failed, shows.
//
// With a publisher (kv-events) each rank says what its cache holds, in the newer encoding or the
// older (old-forms), and vLLM's render routes say what tokens a prompt has: those of its JSON text,
// four bytes each, or the ids that it is given as.
//
// Faults are switched on at start or by POST /emulate/faults {"status", "delay_ms", "cut_after",
// "every", "lose_events"}: a status instead of an answer, a pause before it, an answer cut at that
// byte of its body; each counts every nth inference request. Or KV events that get lost. GET
// /emulate/stats counts what runs and is held.
//
// Invariants: running and held fall back to zero. Errors: in OpenAI's shape, as these engines do.
// Concurrency: shard thread only. Source: facts/engines.md 4.1, 4.2, 4.7, 4.8.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/task.h"
#include "core/dialects/dialect.h"
#include "core/dialects/json_body.h"
#include "domain/tokens.h"
#include "port/clock.h"
#include "port/http.h"
#include "port/upstream.h"
#include "service/emulate/block_cache.h"

namespace penstock::emulate {

struct Faults {
  int status = 0;  // 0: none
  Duration delay{};
  std::optional<std::size_t> cut_after;  // bytes of the answer's body
  bool lose_events = false;              // KV events are kept for replays and not sent; of all
  std::uint32_t every = 1;
};

struct EmulatorOptions {
  dialects::EngineKind kind = dialects::EngineKind::kVllm;
  std::string model = "emulated";
  std::string key;  // that clients must have; empty: none
  std::uint32_t ranks = 1;
  Duration first_token = std::chrono::milliseconds(20);
  Duration token_time = std::chrono::milliseconds(5);
  std::uint32_t tokens = 16;  // of an answer, unless the client wants fewer
  Duration lease = std::chrono::seconds(30);
  std::size_t cache_tokens = std::size_t{1} << 18;  // of each rank's prefix cache
  std::string mode = "null";  // SGLang's disaggregation mode: null, prefill, decode
  bool old_forms = false;     // load reports as older versions give them
  bool old_events = false;    // KV events as arrays, by position; with old_forms in any case
  bool mooncake = false;      // vLLM's connector, instead of NIXL
  // A request whose client has gone goes on until POST /abort_request names its rid (SGLang).
  bool ignore_close = false;
  std::string version = "0.11.0";
  std::string engine_id = "emulated";   // with Mooncake; drawn at every start
  std::uint16_t bootstrap_port = 8998;  // that it tells of itself
  // That a leg waits for the other one; nothing: as long as the engine does.
  std::optional<Duration> peer_wait;
  std::string kv_events;  // where rank 0 publishes KV events, the others at the ports after it
  std::string kv_replay;  // and answers replays
  std::string kv_topic;
  std::uint64_t hash_seed = 0;  // of block hashes; drawn at every start
  Faults faults;
};

// Sets one option by its name: "model=x", "ranks=2", "fault-status=500", ...
Status set_option(EmulatorOptions& options, std::string_view name_and_value);

// The answer to a prompt, as words; what every emulator says.
std::vector<std::string> emulated_words(std::uint64_t prompt, std::uint32_t count);
// What stands for the meaning of a prompt.
std::array<double, 4> emulated_embedding(std::uint64_t prompt);
// What stands for the prompt: a hash of the JSON of its messages, prompt or input.
std::uint64_t prompt_of(const dialects::JsonBody& body);
// The tokens of a value of messages, prompt or input: its own ids, or its JSON text's.
std::vector<TokenId> emulated_tokens(std::string_view json);
// The members that it reads.
std::span<const std::string_view> emulated_keys();

class Emulator {
 public:
  // To another emulator at this address; null when it is no address.
  using Dial = std::function<std::unique_ptr<Upstream>(const std::string& url)>;

  Emulator(Clock& clock, EmulatorOptions options, std::function<double()> unix_seconds,
           Dial dial = nullptr);

  // The HttpHandler.
  Task<void> handle(std::unique_ptr<HttpExchange> exchange);

  std::uint32_t running() const { return running_; }
  // Prompts whose KV waits to be fetched.
  std::size_t held() const;
  // Takes a rank's messages of KV events.
  using Publish = std::function<void(std::size_t rank, std::string payload, bool lost)>;
  // `endpoints`: what /emulate/stats tells of them, as JSON.
  void publish_with(Publish publish, std::string endpoints);
  const EmulatorOptions& options() const { return options_; }
  // Closes connections to other emulators, before the clock goes.
  void close();
  void set_bootstrap_port(std::uint16_t port) { options_.bootstrap_port = port; }

 private:
  class Answer;
  friend class Answer;

  // What a prefill leg computes for a decode leg of another emulator.
  struct Transfer {
    bool ready = false;
    std::uint64_t prompt = 0;
    Clock::TimerId timer = 0;  // of one that waits when its request has ended
  };

  // Blocks of a NIXL prefill leg.
  struct Held {
    std::uint64_t prompt = 0;
    Clock::TimerId timer = 0;
  };

  std::string engine_id(std::size_t rank) const;
  // What the present request's answer is called; no engine calls another one so.
  std::uint64_t name_answer() const;
  Duration peer_wait() const;
  Upstream* peer(const std::string& url);
  Task<void> give_kv(HttpExchange& exchange);
  HttpResponse give_held(std::string_view request);
  // Calls `leave` when nobody wants the request any more.
  void when_left(HttpExchange& exchange, const std::string& rid, std::function<void()> leave);
  HttpResponse record_experts(std::string_view path);
  HttpResponse render(const HttpRequest& request, bool several) const;
  std::optional<HttpResponse> get(const HttpRequest& request) const;
  HttpResponse metrics() const;
  HttpResponse loads() const;
  HttpResponse set_faults(const HttpRequest& request);
  Task<void> infer(HttpExchange& exchange, dialects::WireApi api);
  bool fault_now();
  // Waits so long, or until the client has gone.
  Task<void> wait(Duration time, const bool& gone);

  Clock& clock_;
  EmulatorOptions options_;
  std::function<double()> unix_seconds_;
  std::uint64_t requests_ = 0;
  std::uint32_t running_ = 0;
  std::vector<std::uint32_t> running_of_rank_;
  std::vector<BlockCache> caches_;                 // by rank
  std::map<std::string, Held, std::less<>> held_;  // by the params' remote_request_id
  // How requests that have a rid are ended.
  std::map<std::string, std::function<void()>, std::less<>> aborts_;
  std::map<std::string, Transfer, std::less<>> transfers_;
  bool records_experts_ = false;
  Dial dial_;
  Publish publish_;
  std::string endpoints_ = "{}";
  std::map<std::string, std::unique_ptr<Upstream>, std::less<>> peers_;
};

}  // namespace penstock::emulate
