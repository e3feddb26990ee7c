// FakeUpstream: an engine of somebody else as a script, for tests of the service.
//
// GET requests are answered from a table; each POST takes the next answer. An answer may fail
// before its head, come in pieces, be cut, or hang until it is cancelled or its deadline passes.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "port/clock.h"
#include "port/upstream.h"

namespace penstock::testing {

struct UpstreamAnswer {
  enum class End { kWhole, kCut, kHang };

  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::string> pieces;
  End end = End::kWhole;
  std::vector<HttpHeader> headers = {};
  std::optional<ErrorCode> refused = {};  // instead of a head
  Duration connects = {};                 // so long it takes to reach the server
};

class FakeUpstream final : public Upstream {
 public:
  explicit FakeUpstream(Clock& clock) : clock_(clock) {}

  std::map<std::string, std::pair<int, std::string>> get = {
      {"/health", {200, ""}},
      {"/v1/models", {200, R"({"object":"list","data":[{"id":"m","max_model_len":4096}]})"}}};
  std::deque<UpstreamAnswer> answers;
  std::vector<UpstreamRequest> posts;
  std::vector<UpstreamRequest> gets;
  int open = 0;       // calls alive
  int cancelled = 0;  // calls ended by cancel() or let go before their end

  std::unique_ptr<UpstreamCall> call(UpstreamRequest request) override {
    UpstreamAnswer answer;
    const Instant send_by = request.send_by;
    for (const std::string_view piece : std::exchange(request.pieces, {}))
      request.body += piece;
    if (request.method == "GET") {
      const auto found = get.find(request.target);
      answer.status = found == get.end() ? 404 : found->second.first;
      if (found != get.end()) answer.pieces = {found->second.second};
      gets.push_back(std::move(request));
    } else {
      posts.push_back(std::move(request));
      if (posts.back().target == "/abort_request") {
        answer.pieces = {"{}"};
      } else if (answers.empty()) {
        answer.refused = ErrorCode::kUnavailable;
      } else {
        answer = std::move(answers.front());
        answers.pop_front();
      }
    }
    return std::make_unique<Call>(*this, std::move(answer), send_by);
  }
  void close() override {}
  const UpstreamCounters& counters() const override { return counters_; }

 private:
  class Call final : public UpstreamCall {
   public:
    Call(FakeUpstream& server, UpstreamAnswer answer, Instant send_by)
        : server_(server), answer_(std::move(answer)), send_by_(send_by) {
      ++server_.open;
    }
    ~Call() override {
      --server_.open;
      server_.cancelled += done_ ? 0 : 1;
    }
    Task<Result<UpstreamHead>> head(Instant) override {
      if (answer_.connects > Duration::zero()) co_await Sleep(server_.clock_, answer_.connects);
      if (cancelled_) co_return fail(ErrorCode::kCancelled, "the call was cancelled");
      if (server_.clock_.now() >= send_by_) {
        done_ = true;
        co_return fail(ErrorCode::kConflict, "too late");
      }
      if (answer_.refused) {
        done_ = true;
        co_return fail(*answer_.refused, "nobody answers");
      }
      sent_ = true;
      UpstreamHead head{answer_.status, answer_.headers};
      head.headers.push_back({"Content-Type", answer_.content_type});
      co_return head;
    }
    Task<Result<std::string>> read(Instant deadline) override {
      using End = UpstreamAnswer::End;
      if (next_ < answer_.pieces.size()) co_return answer_.pieces[next_++];
      if (answer_.end == End::kHang) {
        if (!cancelled_) {
          auto wake = std::make_shared<OneShot<bool>>();
          wake_ = wake;
          server_.clock_.call_at(deadline, [weak = std::weak_ptr(wake)] {
            if (const auto alive = weak.lock()) alive->set(true);
          });
          co_await *wake;
        }
        if (cancelled_) co_return fail(ErrorCode::kCancelled, "the call was cancelled");
        co_return fail(ErrorCode::kDeadlineExceeded, "it did not answer in time");
      }
      done_ = true;
      if (answer_.end == End::kCut) co_return fail(ErrorCode::kDataLoss, "it closed in mid-answer");
      co_return std::string();
    }
    bool sent() const override { return sent_; }
    void cancel() override {
      cancelled_ = true;
      if (const auto wake = wake_) wake->set(true);
    }

   private:
    FakeUpstream& server_;
    UpstreamAnswer answer_;
    const Instant send_by_;
    std::size_t next_ = 0;
    std::shared_ptr<OneShot<bool>> wake_;
    bool cancelled_ = false;
    bool sent_ = false;
    bool done_ = false;
  };

  Clock& clock_;
  UpstreamCounters counters_;
};

}  // namespace penstock::testing
