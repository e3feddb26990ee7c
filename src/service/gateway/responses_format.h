// ResponsesFormat: the WireFormat of the Responses API.
//
// The request is read before the generation begins, because what it goes on from has to be fetched
// first; parse() hands over what was read, or the error. Concurrency: owned by its request.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/protocol/responses_request.h"
#include "core/protocol/responses_response.h"
#include "service/gateway/wire_format.h"

namespace penstock::gateway {

class ResponsesFormat final : public WireFormat {
 public:
  // `name` is that of the answer, if it must be one known before; else a new one is taken.
  ResponsesFormat(Result<protocol::ResponsesRequest> request, protocol::Seal seal,
                  std::function<std::int64_t()> unix_seconds, std::string name = {})
      : request_(std::move(request)),
        seal_(std::move(seal)),
        unix_seconds_(std::move(unix_seconds)),
        name_(std::move(name)) {}

  Result<protocol::ChatRequest> parse(std::string_view body,
                                      const protocol::ChatLimits& limits) override;
  std::unique_ptr<protocol::AnswerWriter> make_writer(const protocol::ChatRequest& request,
                                                      const AnswerIdentity& answer) override;

  // Makes it a request that is only counted: the answer is what `body` says of the prompt's tokens.
  void only_count(std::function<std::string(std::uint64_t tokens)> body) {
    count_body_ = std::move(body);
  }
  bool only_counts() const override { return static_cast<bool>(count_body_); }
  std::string count_body(std::uint64_t tokens) const override { return count_body_(tokens); }

  // Null before generation began; valid while it lasts.
  const protocol::ResponsesWriter* writer() const { return writer_; }

 private:
  Result<protocol::ResponsesRequest> request_;
  protocol::Seal seal_;
  std::function<std::int64_t()> unix_seconds_;
  std::string name_;
  std::function<std::string(std::uint64_t)> count_body_;
  const protocol::ResponsesWriter* writer_ = nullptr;
};

// The answer as it begins: what a response in the background is before it runs.
protocol::ResponsesAnswer begin_response(const protocol::ResponsesRequest& request,
                                         std::string_view model, const AnswerIdentity& answer);

}  // namespace penstock::gateway
