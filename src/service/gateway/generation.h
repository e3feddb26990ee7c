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
// Invariants: the engine's side is owned by an EngineRun, so it stops on every way out.
// Errors: answered to the client here. Concurrency: shard thread only; owned by its exchange's
// task.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/protocol/answer_writer.h"
#include "core/protocol/chat_request.h"
#include "domain/request_record.h"
#include "port/http.h"
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
  void stop(Error why) { run_.abandon(std::move(why)); }

 private:
  Task<Status> serve();
  Status admit();
  Task<Status> encode();
  // A prompt that came as token ids.
  Status take_ids(RawPrompt raw);
  Task<Status> answer_count();
  Status check_size(const std::vector<PromptSpan>& spans) const;
  Task<Status> place_and_submit();
  Task<Status> wait_for_room(const PlacementRequest& wanted);
  // What the KV cache is expected to serve of the prompt.
  KvIndexMatch match(const ModelDescription& model);
  Status check_length(const ModelDescription& model);
  Task<Status> generate();
  void begin_answer();
  Task<Status> consume(const EngineOutput& output);
  Task<Status> send_events();
  Task<Status> end_answer();
  Task<void> answer_error(const Error& error);
  void settle(const Status& status);

  GatewayContext& context_;
  HttpExchange& exchange_;
  RequestRecord& record_;
  WireFormat& format_;
  Instant received_at_;
  EngineRun run_;

  protocol::ChatRequest request_;
  CacheHints cache_;
  const ServedModel* model_ = nullptr;
  TokenIds prompt_;
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
};

}  // namespace penstock::gateway
