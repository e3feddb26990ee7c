// Relay: one request through one of the engines, from its body to the last byte of its answer.
//
// The body stays as it is but for known keys (core/dialects/json_body.h): the model's name where
// the client used an alias, and stream_options.include_usage where a stream would not say what it
// used; the extra chunk that this brings goes no further. A stream passes event by event: all that
// has come complete goes out in one write. Nothing is sent before the first of it is there, so
// until then another engine may take the request, within the retry budget. After that it may where
// the answer would be the same (greedy or with a seed): what it says again is compared and left out
// (core/dialects/stream_replay.h). Else a failure is an error in the words of the API, and the
// stream ends in order.
//
// Invariants: the engine gets its own credentials and none of the client's, one x-request-id, and
// headers of a short list only; when the client goes, the engine's connection closes, and an engine
// that knows requests by name (SGLang's rid) is told to abort this one, too.
// Usage comes from the engine's own report. Errors: in the API's shape. Concurrency: shard thread.
// Source: facts/engines.md section 5, rules 1, 2, 3, 4, 8, 9, 10.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "core/dialects/answer_watch.h"
#include "core/dialects/json_body.h"
#include "core/dialects/pd_run.h"
#include "core/dialects/stream_replay.h"
#include "core/protocol/errors.h"
#include "domain/request_record.h"
#include "port/clock.h"
#include "port/http.h"
#include "service/foreign/engine_set.h"

namespace penstock::foreign {

struct RelayLimits {
  Duration request_time_max = std::chrono::minutes(10);
  Duration keep_alive_interval = std::chrono::seconds(10);
  Duration engine_wait_max = std::chrono::seconds(10);  // for an engine to be usable
  std::uint32_t tries_max = 3;
  std::size_t answer_bytes_max = std::size_t{64} << 20;  // of one that is no stream
};

// What the requests of one shard have in common.
struct RelayContext {
  Clock& clock;
  EngineSet& engines;
  RelayLimits limits;
  // The engine's name of a model that the client may call by an alias.
  std::function<std::string(std::string_view)> real_name;
  Rng rng;                               // of names that no other request has
  std::function<double()> unix_seconds;  // for leases by the engines' clocks
  dialects::PdLimits legs = {};
  dialects::RetryBudget retries = dialects::RetryBudget();
  // Of every placement, for `penstock explain`; may be empty.
  std::function<void(gateway::PlacementExplanation)> keep_explanation = {};
};

class Relay {
 public:
  Relay(RelayContext& context, HttpExchange& exchange, RequestRecord& record,
        dialects::WireApi api);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  Task<void> run();
  // Ends the answer with this error, soon.
  void stop(const Error& why);

 private:
  // What came of a try.
  enum class Try : std::uint8_t {
    kAnswered,  // or the client has gone
    kAgain,     // nothing was sent, another engine may do it; error_ says what was wrong
    kFailed,    // error_ says what goes to the client
  };

  Result<void> read_body();
  // The client's body with what we change, and further edits.
  Result<dialects::EditedBody> edited_body(const Engine& engine,
                                           std::span<const dialects::Edit> more = {});
  std::string_view prompt_text() const;
  std::string_view prompt_head() const;
  bool generates() const;
  bool names_requests(const Engine& engine) const;
  std::vector<HttpHeader> engine_headers(const Place& place) const;
  // What the prompt is known by where caches are looked up (prompt.cc).
  Task<void> name_prompt();
  Task<void> name_ids(PrefixSource& prefixes);
  Place pick(const Wanted& wanted);
  void placed(const Place& place);
  void observe(const Place& place, std::uint64_t cached, std::uint64_t prompt);
  void explain();
  Task<Place> find_engine();
  Task<Try> attempt(const Place& place);
  Task<Try> talk(const Place& place, Permit& permit, dialects::EditedBody body,
                 Instant send_by = Instant::max());
  // P/D (legs.cc): the prompt on a prefill engine, the answer from this one.
  Task<Try> attempt_serial(const Place& decode);
  Task<Try> attempt_concurrent(const Place& decode);
  struct Pairing {
    std::vector<dialects::Edit> prefill;
    std::vector<dialects::Edit> decode;
  };
  Task<Result<Pairing>> pair_legs(const Place& prefill, const Place& decode);
  Task<Try> both_legs(const Place& prefill, const Place& decode);
  // Has blocks of that prefill fetched, which nobody else will: by `decode`, or by another one if
  // that refused them.
  void release_blocks(const Place& prefill, const Place& decode,
                      std::span<const dialects::Edit> edits, Instant send_by);
  Task<Result<std::string>> prefill_leg(const Place& place, dialects::EditedBody body);
  Task<Try> decode_leg(const Place& decode, std::span<const dialects::Edit> edits,
                       Instant send_by = Instant::max());
  Place pick_prefill(const Place& decode, std::span<const WorkerId> tried);
  std::size_t prompts() const;
  void begin_legs(const Place& prefill, const Place& decode);
  // Media (encode.cc).
  struct Encoding;
  Task<Status> encode_media(const Engine& computes);
  Task<void> encode_item(std::shared_ptr<Encoding> run, std::size_t index, std::string_view item);
  Task<Result<std::string>> encode_on(Encoding& run, const Place& place, std::size_t index,
                                      std::string_view item);
  void cancel_encoding();
  Task<Try> relay_stream(UpstreamCall& call, const UpstreamHead& head, Permit& permit);
  Task<Try> relay_whole(UpstreamCall& call, const UpstreamHead& head, Permit& permit);
  Task<Try> refused(UpstreamCall& call, const UpstreamHead& head, Permit& permit);
  Try lost(Permit& permit, const Error& error, const Engine& engine);
  void take(const dialects::SseEvent& event, std::string& out);
  // Whether another engine may do it: nothing was sent, or it can be found again.
  Try again();
  Task<void> answer_error();
  void settle();
  void take_usage();
  void cancel_calls();
  std::string in_band_error(const Error& error);
  Instant deadline() const;
  bool over() const { return gone_ || stopped_.has_value(); }

  RelayContext& context_;
  HttpExchange& exchange_;
  RequestRecord& record_;
  const dialects::WireApi api_;
  std::optional<dialects::JsonBody> body_;
  std::string model_;
  bool adds_usage_ = false;  // we asked for the usage chunk, so it is ours
  std::string rid_;          // what the engine knows this try by
  bool heard_out_ = false;   // the engine's answer came to its end
  bool too_late_ = false;    // it could not be sent while its params held
  bool taken_ = false;       // the engine has the request, and did not refuse it at once
  std::vector<WorkerId> tried_;
  std::optional<PromptName> prompt_;     // of a prompt that is looked for in caches
  std::shared_ptr<Engine> rendered_by_;  // who said its token ids, if an engine did
  PromptTraits traits_;
  Place computes_;  // the prompt, and says how much of it was cached
  gateway::PlacementExplanation explanation_;
  std::shared_ptr<Encoding> encoding_;    // under way
  std::vector<dialects::Edit> encoded_;   // what came of it, for who computes the prompt
  UpstreamCall* call_ = nullptr;          // the one under way
  UpstreamCall* prefill_call_ = nullptr;  // beside it
  std::optional<Error> cut_error_;        // why the decode leg was cancelled
  std::optional<std::uint64_t> cached_;   // of the prompt, by the prefill engine
  bool gone_ = false;                     // the client
  std::optional<Error> stopped_;
  Error error_;
  bool streaming_ = false;  // the client has something of the answer
  std::uint64_t events_ = 0;
  std::optional<dialects::StreamReplay> replay_;  // of an answer that any engine gives again
  bool resumes_ = false;                          // another engine goes on with it
  bool differs_ = false;                          // but its answer is another
  bool died_ = false;                             // the stream says that its engine failed
  dialects::AnswerWatch watch_;
};

}  // namespace penstock::foreign
