// Generation: the life of one request for an answer, in whatever wire format, top to bottom.
//
//   admit     parse, find the model                       -> 400, 404
//   encode    conversation -> spans -> token ids
//   queue     check the context length, wait for room      -> 400, 429, 503
//   place     choose the ranks                            -> 503
//   generate  outputs -> text -> reasoning, content, calls -> an AnswerWriter's events or body
//   settle    exact usage into the record, on every path
//
// Nothing is sent before the first output, so every refusal has its HTTP status; a failure after
// that ends the stream with an error event, never with a made-up finish.
//
// A request with several prompts takes the way from queue to generate once for each, side by side;
// an error of one ends all. Their choices are numbered prompt by prompt.
//
// Invariants: the engine's side is owned by EngineRuns, so it stops on every way out.
// Errors: answered to the client here. Concurrency: shard thread only; owned by its exchange's
// task.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/protocol/answer_writer.h"
#include "core/protocol/chat_request.h"
#include "domain/request_record.h"
#include "port/http.h"
#include "service/gateway/answer_rules.h"
#include "service/gateway/choice.h"
#include "service/gateway/context.h"
#include "service/gateway/engine_run.h"
#include "service/gateway/wire_format.h"

namespace penstock::gateway {

class Generation {
 public:
  // `format` outlives it.
  Generation(GatewayContext& context, HttpExchange& exchange, RequestRecord& record,
             WireFormat& format);

  // Answers the exchange and fills in the record.
  Task<void> run();
  // Ends the answer with this error as soon as possible; run() then returns.
  void stop(Error why);

 private:
  // One prompt, its way through the engines, and what comes of it.
  struct Part {
    Part(GatewayContext& context, Instant deadline, const std::string& request_id)
        : run(context, deadline, request_id), taken(context.clock, 1) {}
    TokenIds prompt;
    std::string note;   // what people want to know of its way, besides its placement
    std::string field;  // of the request
    std::uint32_t first_choice = 0;
    std::uint32_t open_choices = 0;
    std::uint64_t cached_tokens = 0;
    EngineRun run;
    // With several: what serve_part() has for gather() to take.
    Status status;
    std::optional<EngineOutput> output;
    Channel<bool> taken;
  };
  Task<Status> serve();
  Status admit();
  Task<Status> encode();
  Task<Status> encode_conversation(Part& part);
  Task<Status> encode_truncated(Part& part);
  // Makes this the conversation; whether its prompt and an answer fit the context.
  Task<Result<bool>> encodes_to_fit(Part& part, Conversation conversation,
                                    const ModelDescription& served);
  Task<Status> encode_spans(Part& part, std::vector<PromptSpan> spans);
  Task<Status> encode_raw(Part& part, std::size_t index, RawPrompt raw);
  Task<Status> answer_count();
  Status check_size(const Part& part, const std::vector<PromptSpan>& spans) const;
  Task<Status> place_and_submit(Part& part);
  Task<Status> wait_for_room(Part& part, const PlacementRequest& wanted);
  // What the KV cache is expected to serve of the prompt.
  KvIndexMatch match(Part& part, const ModelDescription& model);
  Status check_length(const Part& part, const ModelDescription& model);
  Task<Status> generate();
  // For several prompts: all of them from the queue to their last output.
  Task<Status> generate_all();
  Task<void> serve_part(std::size_t index);
  Task<Status> gather();
  void begin_answer();
  Task<Status> consume(Part& part, const EngineOutput& output);
  Task<Status> keep_alive();
  Task<Status> send_events();
  Task<Status> end_answer();
  Task<void> answer_error(const Error& error);
  void settle(const Status& status);

  GatewayContext& context_;
  HttpExchange& exchange_;
  RequestRecord& record_;
  WireFormat& format_;
  Instant received_at_;
  std::deque<Part> parts_;  // one at least
  protocol::ChatRequest request_;
  AnswerShape shape_ = AnswerShape::kUsual;
  CacheHints cache_;
  const ServedModel* model_ = nullptr;
  bool raw_ = false;  // the prompt is no conversation, so the answer is text and nothing else
  std::vector<Choice> choices_;
  std::uint32_t open_choices_ = 0;
  std::unique_ptr<protocol::AnswerWriter> writer_;
  std::string events_;           // what the writer said and was not sent yet
  bool answer_begun_ = false;    // the writer was told of the prompt
  bool stream_begun_ = false;    // the head has been sent
  bool context_is_cap_ = false;  // the answer may be shorter than asked for: the context ends
  bool unreachable_ = false;     // a write failed: nothing more can be said
  bool settled_ = false;
  // With several prompts.
  bool side_by_side_ = false;   // generate_all() has begun
  Channel<std::size_t> ready_;  // parts that have something to take; closed by stop()
  std::optional<Error> stopped_;
  Gate gate_;  // of serve_part()
};

}  // namespace penstock::gateway
