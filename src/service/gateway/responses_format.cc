#include "service/gateway/responses_format.h"

#include <utility>

namespace penstock::gateway {

using protocol::ChatLimits;
using protocol::ChatRequest;
using protocol::ResponsesWriter;

Result<ChatRequest> ResponsesFormat::parse(std::string_view /*body*/,
                                           const ChatLimits& /*limits*/) {
  if (!request_) return std::unexpected(request_.error());
  return std::move(request_->chat);  // what else was asked for stays here
}

std::unique_ptr<protocol::AnswerWriter> ResponsesFormat::make_writer(const ChatRequest& request,
                                                                     const AnswerIdentity& answer) {
  protocol::ResponsesAnswer response = begin_response(*request_, request.model, answer);
  if (!name_.empty()) response.name = name_;
  response.stream = request.stream;
  response.logprobs = request.logprobs();
  response.encrypted_reasoning = request_->encrypted_reasoning && seal_.close;
  response.seal = seal_;
  response.unix_seconds = unix_seconds_;
  auto writer = std::make_unique<ResponsesWriter>(std::move(response));
  writer_ = writer.get();
  return writer;
}

protocol::ResponsesAnswer begin_response(const protocol::ResponsesRequest& request,
                                         std::string_view model, const AnswerIdentity& answer) {
  protocol::ResponsesAnswer out;
  out.name = answer.name;
  out.created = answer.created;
  out.model = model;
  out.background = request.background;
  out.spaces = request.spaces;
  out.echo = request.echo;
  return out;
}

}  // namespace penstock::gateway
