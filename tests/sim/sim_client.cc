#include "tests/sim/sim_client.h"

#include <algorithm>
#include <utility>

namespace penstock::simulated {

class SimClient::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<SimClient> client, HttpRequest request)
      : client_(std::move(client)), request_(std::move(request)) {}
  ~Exchange() override {
    client_->disconnect_ = {};
    if (client_->end == ClientEnd::kOpen) client_->end = ClientEnd::kCut;
  }
  const HttpRequest& request() const override { return request_; }
  void on_disconnect(std::function<void()> call) override {
    client_->disconnect_ = std::move(call);
  }
  void set_deadline(Instant deadline) override { client_->deadline_ = deadline; }
  Task<Status> respond(HttpResponse response) override {
    client_->status = response.status;
    const Status sent = co_await client_->put(std::move(response.body));
    if (sent) client_->end = ClientEnd::kFinished;
    co_return sent;
  }
  void begin_stream(int code, std::string, std::vector<HttpHeader>) override {
    client_->status = code;
    client_->streamed = true;
  }
  Task<Status> write(std::string chunk) override { return client_->put(std::move(chunk)); }
  Task<Status> finish() override {
    if (client_->is_gone()) co_return fail(ErrorCode::kCancelled, "the client is gone");
    client_->end = ClientEnd::kFinished;
    co_return Status{};
  }

 private:
  std::shared_ptr<SimClient> client_;
  HttpRequest request_;
};

std::unique_ptr<HttpExchange> SimClient::exchange(HttpRequest request) {
  if (plan_.leaves_after) {
    clock_.call_at(clock_.now() + *plan_.leaves_after,
                   [self = shared_from_this()] { self->leave(); });
  }
  return std::make_unique<Exchange>(shared_from_this(), std::move(request));
}

void SimClient::leave() {
  if (is_gone()) return;
  end = ClientEnd::kLeft;
  if (const auto call = std::exchange(disconnect_, {})) call();
  if (room_ != nullptr) std::exchange(room_, nullptr)->set(true);
}

Task<Status> SimClient::put(std::string bytes) {
  if (is_gone()) co_return fail(ErrorCode::kCancelled, "the client is gone");
  if (socket.empty()) progress_at_ = clock_.now();
  socket += bytes;
  ++writes;
  socket_most = std::max(socket_most, socket.size());
  if (plan_.read_every == Duration::zero()) {
    read();
  } else if (reading_ == 0) {
    reading_ = clock_.call_at(clock_.now() + plan_.read_every,
                              [self = shared_from_this()] { self->read(); });
  }
  while (socket.size() > kSocketBytes) {
    OneShot<bool> room;
    room_ = &room;
    const Instant last = std::max(deadline_, clock_.now() + std::chrono::seconds(1));
    const Clock::TimerId timer =
        clock_.call_at(std::min(progress_at_ + write_timeout_, last), [this] {
          if (room_ != nullptr) std::exchange(room_, nullptr)->set(false);
        });
    const bool woken = co_await room;
    clock_.cancel(timer);
    if (is_gone()) co_return fail(ErrorCode::kCancelled, "the client is gone");
    if (woken) continue;
    end = ClientEnd::kCut;
    if (const auto call = std::exchange(disconnect_, {})) call();
    co_return fail(ErrorCode::kDeadlineExceeded, "the client stopped reading the answer");
  }
  co_return Status{};
}

void SimClient::read() {
  reading_ = 0;
  const std::size_t wanted = std::min(plan_.read_bytes, plan_.stops_after - taken.size());
  const std::size_t n = std::min(wanted, socket.size());
  if (n > 0) progress_at_ = clock_.now();
  taken += socket.substr(0, n);
  socket.erase(0, n);
  if (!socket.empty() && taken.size() < plan_.stops_after && end != ClientEnd::kLeft) {
    reading_ = clock_.call_at(clock_.now() + std::max(plan_.read_every, Duration(1)),
                              [self = shared_from_this()] { self->read(); });
  }
  if (n > 0 && room_ != nullptr) std::exchange(room_, nullptr)->set(true);
}

}  // namespace penstock::simulated
