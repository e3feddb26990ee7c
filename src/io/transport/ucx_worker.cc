#if PENSTOCK_UCX
#include "io/transport/ucx_worker.h"

#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/guarded.h"

namespace penstock::transport {
namespace {

constexpr unsigned kMessageId = 1;
constexpr unsigned kGreetingId = 2;
constexpr std::size_t kBuffersMax = 8;                         // being received at once
constexpr std::size_t kLengthMax = std::size_t{1} << 20;       // of one message
constexpr int kProgressMax = 256;                              // calls in a turn
constexpr auto kEndPatience = std::chrono::milliseconds(200);  // for ends of endpoints

std::unexpected<Error> bad(std::string_view what, ucs_status_t status) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("UCX cannot {}: {}", what, ::ucs_status_string(status)));
}

}  // namespace

Result<std::unique_ptr<UcxWorker>> UcxWorker::open(EventLoop& loop) {
  std::unique_ptr<UcxWorker> self(new UcxWorker(loop));
  ucp_config_t* config = nullptr;
  ucs_status_t status = ::ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return bad("read its configuration", status);
  // Whoever chooses UCX's transports chooses their settings, too: UCX warns of those it can't use.
  if (std::getenv("UCX_TLS") == nullptr)
    (void)::ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  status = ::ucp_init(&params, config, &self->context_);
  ::ucp_config_release(config);
  if (status != UCS_OK) return bad("start", status);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // opened here, used on the loop's thread
  status = ::ucp_worker_create(self->context_, &worker_params, &self->worker_);
  if (status != UCS_OK) return bad("make a worker", status);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxWorker::on_message;
  handler.arg = self.get();
  status = ::ucp_worker_set_am_recv_handler(self->worker_, &handler);
  if (status != UCS_OK) return bad("take messages", status);
  handler.id = kGreetingId;
  handler.cb = [](void* user, const void* header, std::size_t header_length, void*, std::size_t,
                  const ucp_am_recv_param_t*) {
    Token token;
    if (header_length != sizeof token) return UCS_OK;
    std::memcpy(&token, header, sizeof token);
    static_cast<UcxWorker*>(user)->greetings_.push_back(token);
    return UCS_OK;
  };
  status = ::ucp_worker_set_am_recv_handler(self->worker_, &handler);
  if (status != UCS_OK) return bad("take greetings", status);
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  status = ::ucp_worker_get_address(self->worker_, &address, &length);
  if (status != UCS_OK) return bad("tell its address", status);
  self->address_.assign(reinterpret_cast<const char*>(address), length);
  ::ucp_worker_release_address(self->worker_, address);
  int fd = -1;
  status = ::ucp_worker_get_efd(self->worker_, &fd);
  if (status != UCS_OK) return bad("wake others", status);
  self->watch_ = loop.watch(fd, EPOLLIN, [&loop](std::uint32_t) { loop.wake_work(); });
  loop.add_work([raw = self.get()] { return raw->turn(); });
  loop.wake_work();  // arms it
  return self;
}

UcxWorker::~UcxWorker() {
  if (watch_ != 0) loop_.unwatch(watch_);
  if (worker_ != nullptr) {
    // Endpoints were closed; what UCX holds of them ends in progress.
    const auto until = std::chrono::steady_clock::now() + kEndPatience;
    while ((under_way_ > 0 || !settled()) && std::chrono::steady_clock::now() < until) {
      ::ucp_worker_progress(worker_);
      tell_greetings();
    }
    if (!settled()) {
      // Where a leak checker finds it; never destroyed, for it looks after static objects are.
      using Left = Guarded<std::vector<std::pair<ucp_context_h, ucp_worker_h>>>;
      static Left& left_to_the_end = *new Left;
      left_to_the_end.with([this](auto& left) { left.emplace_back(context_, worker_); });
      return;
    }
    ::ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) ::ucp_cleanup(context_);
}

bool UcxWorker::turn() {
  int calls = 0;
  while (calls < kProgressMax && ::ucp_worker_progress(worker_) != 0)
    ++calls;
  tell();
  receive_waiting();
  if (calls == kProgressMax || !received_.empty() || !sent_.empty()) return true;
  return ::ucp_worker_arm(worker_) != UCS_OK;  // busy: there is something already
}

void UcxWorker::tell_greetings() {
  for (const Token& token : std::exchange(greetings_, {})) {
    const auto at = greeting_.find(token);
    if (at == greeting_.end()) continue;
    if (at->second.side == Side::kReader) {
      greeted(token);
    } else {
      greet(token, at->second.endpoint);
    }
  }
  for (const Token& token : std::exchange(answered_, {}))
    greeted(token);
}

void UcxWorker::greeted(const Token& token) {
  const auto at = greeting_.find(token);
  if (at == greeting_.end()) return;
  const Greeting greeting = at->second;
  greeting_.erase(at);
  if (greeting.closes) close(greeting.endpoint);
}

void UcxWorker::tell() {
  tell_greetings();
  for (auto& [sending, good] : std::exchange(sent_, {}))
    sending->sent(good);
  for (auto& receiving : std::exchange(received_, {})) {
    const auto at = expected_.find(receiving->header.token);
    if (receiving->good && at != expected_.end()) {
      const Arrived arrived = at->second;
      arrived(receiving->header.read,
              std::span<const std::byte>(receiving->bytes).first(receiving->length));
    }
    if (receiving->descriptor == nullptr) continue;  // it had no buffer of ours
    --buffers_;
    spare_.push_back(std::move(receiving->bytes));
  }
}

ucs_status_t UcxWorker::on_message(void* self, const void* header, std::size_t header_length,
                                   void* data, std::size_t length,
                                   const ucp_am_recv_param_t* param) {
  UcxWorker& worker = *static_cast<UcxWorker*>(self);
  auto receiving = std::make_unique<Receiving>();
  if (header_length != sizeof receiving->header || length > kLengthMax) return UCS_OK;  // dropped
  receiving->worker = &worker;
  std::memcpy(&receiving->header, header, header_length);
  receiving->length = length;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    receiving->descriptor = data;
    worker.waiting_.push_back(std::move(receiving));
    return UCS_INPROGRESS;
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  receiving->bytes.assign(bytes, bytes + length);
  receiving->good = true;
  worker.received_.push_back(std::move(receiving));
  return UCS_OK;
}

void UcxWorker::receive_waiting() {
  while (!waiting_.empty() && buffers_ < kBuffersMax) {
    std::unique_ptr<Receiving> receiving = std::move(waiting_.front());
    waiting_.pop_front();
    if (!spare_.empty()) {
      receiving->bytes = std::move(spare_.back());
      spare_.pop_back();
    }
    receiving->bytes.resize(kLengthMax);
    ++buffers_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.user_data = receiving.get();
    param.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* user) {
      std::unique_ptr<Receiving> done(static_cast<Receiving*>(user));
      UcxWorker& worker = *done->worker;
      done->good = status == UCS_OK;
      worker.received_.push_back(std::move(done));
      --worker.under_way_;
      ::ucp_request_free(request);
    };
    void* const request = ::ucp_am_recv_data_nbx(
        worker_, receiving->descriptor, receiving->bytes.data(), receiving->length, &param);
    if (UCS_PTR_IS_PTR(request)) {
      ++under_way_;
      (void)receiving.release();  // the callback's
    } else {
      receiving->good = UCS_PTR_STATUS(request) == UCS_OK;
      received_.push_back(std::move(receiving));
    }
  }
}

const std::string& UcxWorker::invite() {
  ++invited_;
  return address_;
}

Result<ucp_ep_h> UcxWorker::connect(const std::string& address, const Token& token, Side side) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  // Ends come from the control connection; requests end by themselves, with an error.
  params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ::ucp_ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) return bad("connect to the peer", status);
  greeting_[token] = {side, endpoint};
  if (side == Side::kReader) {
    --invited_;
    greet(token, endpoint);
  }
  loop_.wake_work();
  return endpoint;
}

// The reader's greeting reaches an owner that knows the token: he gave it.
void UcxWorker::greet(const Token& token, ucp_ep_h endpoint) {
  struct Sent {
    UcxWorker* worker;
    Token token;
  };
  auto greeting = std::make_unique<Sent>(this, token);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = greeting.get();
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    const std::unique_ptr<Sent> done(static_cast<Sent*>(user));
    if (status == UCS_OK) done->worker->sent_greeting(done->token);
    --done->worker->under_way_;
    ::ucp_request_free(request);
  };
  void* const request = ::ucp_am_send_nbx(endpoint, kGreetingId, &greeting->token,
                                          sizeof greeting->token, nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(request)) {
    ++under_way_;
    (void)greeting.release();  // the callback's
  } else if (UCS_PTR_STATUS(request) == UCS_OK) {
    sent_greeting(token);
  }
  loop_.wake_work();
}

void UcxWorker::sent_greeting(const Token& token) {
  const auto at = greeting_.find(token);
  if (at != greeting_.end() && at->second.side == Side::kOwner) answered_.push_back(token);
}

void UcxWorker::disconnect(ucp_ep_h endpoint) {
  const auto at = std::ranges::find_if(
      greeting_, [&](const auto& each) { return each.second.endpoint == endpoint; });
  if (at == greeting_.end()) return close(endpoint);
  at->second.closes = true;
}

void UcxWorker::close(ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t, void* user) {
    --static_cast<UcxWorker*>(user)->under_way_;
    ::ucp_request_free(request);
  };
  if (UCS_PTR_IS_PTR(::ucp_ep_close_nbx(endpoint, &param))) ++under_way_;
  loop_.wake_work();
}

void UcxWorker::send(ucp_ep_h endpoint, const Token& token, std::uint64_t read,
                     std::span<const std::byte> bytes, std::function<void(bool)> sent) {
  auto sending = std::make_unique<Sending>(this, Header{token, read}, std::move(sent));
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = sending.get();
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    std::unique_ptr<Sending> done(static_cast<Sending*>(user));
    UcxWorker& worker = *done->worker;
    worker.sent_.emplace_back(std::move(done), status == UCS_OK);
    --worker.under_way_;
    ::ucp_request_free(request);
  };
  void* const request =
      ::ucp_am_send_nbx(endpoint, kMessageId, &sending->header, sizeof sending->header,
                        bytes.data(), bytes.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    ++under_way_;
    (void)sending.release();  // the callback's
  } else {
    sent_.emplace_back(std::move(sending), UCS_PTR_STATUS(request) == UCS_OK);
  }
  loop_.wake_work();
}

}  // namespace penstock::transport
#endif
