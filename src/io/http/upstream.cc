#include "io/http/upstream.h"

#include <fmt/format.h>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "io/http/dial.h"
#include "io/http/message.h"

namespace penstock::http {
namespace {

using enum ErrorCode;

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kReadsQueuedMax = 4;
constexpr std::size_t kAnyBody = std::numeric_limits<std::size_t>::max() / 2;

std::unexpected<Error> cancelled() {
  return fail(kCancelled, "the call was cancelled");
}

}  // namespace

// One connection. Always being read, but when four reads wait to be taken.
class Link final : public StreamListener, public std::enable_shared_from_this<Link> {
 public:
  Link(Clock& clock, std::unique_ptr<ByteStream> stream)
      : stream_(std::move(stream)), input_(clock, kReadsQueuedMax), area_(kReadBytes) {}

  void read() {
    if (reading_ || !open_ || input_.size() + 1 > kReadsQueuedMax) return;
    reading_ = true;
    stream_->read_some(area_.data(), area_.size(), shared_from_this());
  }
  // `body` outlives the sending, or the link is closed before, which ends it where the stream is
  // plain; `kept` is kept in any case.
  void send(std::string head, std::span<const std::string_view> body,
            std::shared_ptr<const std::string> kept) {
    ENSURE(!writing_);
    head_ = std::move(head);
    kept_ = std::move(kept);
    unsent_.assign(1, head_);
    unsent_.insert(unsent_.end(), body.begin(), body.end());
    first_unsent_ = 0;
    writing_ = true;
    write_more();
  }
  void close(CloseHow how) {
    if (!std::exchange(open_, false)) return;
    stream_->close(how);
    input_.close();
  }

  bool open() const { return open_; }
  bool all_sent() const { return !writing_; }
  // The server ended the stream in order; not: it was reset, or closed by us.
  bool ended() const { return ended_; }
  auto pop(Instant deadline) { return input_.pop(deadline); }
  bool idle_and_clean() const { return open_ && !writing_ && input_.size() == 0; }

  Instant idle_since;
  bool idle = false;

  void on_handshake(bool) override {}
  void on_read(bool ok, std::size_t bytes) override {
    reading_ = false;
    if (!open_) return;
    if (!ok || bytes == 0 || idle) {
      ended_ = true;
      return close(CloseHow::kOrderly);
    }
    const auto self = shared_from_this();
    input_.push(std::string(area_.data(), bytes));
    read();
  }
  void on_write(bool ok, std::size_t bytes) override {
    // What can't be sent may have been answered already (413); reading says how it ended.
    if (!open_ || !ok) return;
    while (bytes > 0) {
      std::string_view& part = unsent_[first_unsent_];
      const std::size_t sent = std::min(bytes, part.size());
      part.remove_prefix(sent);
      bytes -= sent;
      if (part.empty()) ++first_unsent_;
    }
    write_more();
  }

 private:
  void write_more() {
    while (first_unsent_ < unsent_.size() && unsent_[first_unsent_].empty())
      ++first_unsent_;
    if (first_unsent_ == unsent_.size()) {
      writing_ = false;
      unsent_.clear();
      kept_.reset();
      return;
    }
    stream_->write_some(std::span(unsent_).subspan(first_unsent_), shared_from_this());
  }

  std::unique_ptr<ByteStream> stream_;
  Channel<std::string> input_;
  std::vector<char> area_;
  std::string head_;
  std::shared_ptr<const std::string> kept_;
  std::vector<std::string_view> unsent_;
  std::size_t first_unsent_ = 0;
  bool open_ = true;
  bool reading_ = false;
  bool writing_ = false;
  bool ended_ = false;
};

class HttpUpstream::Pool final : public std::enable_shared_from_this<HttpUpstream::Pool> {
 public:
  Pool(AsioClock& clock_in, UpstreamOptions options_in, Url url_in,
       std::shared_ptr<boost::asio::ssl::context> tls_in)
      : clock(clock_in),
        options(std::move(options_in)),
        url(std::move(url_in)),
        tls(std::move(tls_in)) {
    const bool v6 = url.host.contains(':');
    host = fmt::format("{}{}{}:{}", v6 ? "[" : "", url.host, v6 ? "]" : "", url.port);
    while (url.target.ends_with('/'))
      url.target.pop_back();
  }

  std::shared_ptr<Link> take() {
    while (!idle.empty()) {
      auto link = std::move(idle.back());
      idle.pop_back();
      const bool young = clock.now() - link->idle_since < options.idle_max;
      if (link->open() && young) {
        link->idle = false;
        ++counters.reused;
        return link;
      }
      link->close(CloseHow::kOrderly);
    }
    return nullptr;
  }

  void put(std::shared_ptr<Link> link) {
    if (closed || !link->idle_and_clean() || idle.size() >= options.idle_connections_max)
      return link->close(CloseHow::kOrderly);
    link->idle = true;
    link->idle_since = clock.now();
    link->read();
    idle.push_back(std::move(link));
    if (timer == 0) arm(options.idle_max);
  }

  void close() {
    closed = true;
    if (timer != 0) clock.cancel(std::exchange(timer, 0));
    for (const auto& link : std::exchange(idle, {}))
      link->close(CloseHow::kOrderly);
  }

  AsioClock& clock;
  UpstreamOptions options;
  Url url;
  std::shared_ptr<boost::asio::ssl::context> tls;
  std::string host;
  UpstreamCounters counters;
  std::deque<std::shared_ptr<Link>> idle;  // by age, the oldest first

 private:
  void arm(Duration after) {
    timer = clock.call_at(clock.now() + after, [weak = weak_from_this()] {
      if (const auto pool = weak.lock()) pool->retire();
    });
  }
  void retire() {
    timer = 0;
    while (!idle.empty() &&
           (!idle.front()->open() || clock.now() - idle.front()->idle_since >= options.idle_max)) {
      if (idle.front()->open()) ++counters.retired;
      idle.front()->close(CloseHow::kOrderly);
      idle.pop_front();
    }
    if (!idle.empty()) arm(idle.front()->idle_since + options.idle_max - clock.now());
  }

  Clock::TimerId timer = 0;
  bool closed = false;
};

namespace {

class Call final : public UpstreamCall {
 public:
  Call(std::shared_ptr<HttpUpstream::Pool> pool, UpstreamRequest request)
      : pool_(std::move(pool)),
        no_body_(request.method == "HEAD"),
        send_by_(request.send_by),
        body_(std::move(request.pieces)) {
    // TLS may still look at the bytes after the link was closed.
    if (pool_->tls) {
      for (const std::string_view piece : std::exchange(body_, {}))
        request.body += piece;
    }
    own_body_ = std::make_shared<const std::string>(std::move(request.body));
    if (body_.empty()) body_.push_back(*own_body_);
    std::size_t size = 0;
    for (const std::string_view piece : body_)
      size += piece.size();
    request_head_ = fmt::format("{} {}{} HTTP/1.1\r\nhost: {}\r\n", request.method,
                                pool_->url.target, request.target, pool_->host);
    for (const auto& [name, value] : request.headers)
      request_head_.append(name).append(": ").append(value).append("\r\n");
    if (size > 0 || request.method == "POST")
      fmt::format_to(std::back_inserter(request_head_), "content-length: {}\r\n", size);
    request_head_ += "\r\n";
  }
  ~Call() override {
    // Where the answer was read to its end, the link has gone back.
    if (link_) link_->close(CloseHow::kReset);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Task<Result<UpstreamHead>> head(Instant deadline) override {
    while (true) {
      CO_TRY_STATUS(may_send());
      link_ = pool_->take();
      const bool reused = link_ != nullptr;
      if (!reused) {
        CO_TRY(link_, co_await connect(deadline));
      }
      CO_TRY_STATUS(may_send());
      in_.clear();
      link_->read();
      link_->send(request_head_, body_, own_body_);
      sending_ = true;
      auto head = co_await read_head(deadline);
      const bool stale = !head && reused && in_.empty() && link_->ended() && !cancelled_;
      // A server that closes may have read it, and died of it.
      was_sent_ = was_sent_ || head.has_value() || link_->all_sent();
      if (!stale) co_return head;
      sending_ = false;
      ++pool_->counters.stale;
    }
  }

  Task<Result<std::string>> read(Instant deadline) override {
    while (true) {
      if (cancelled_) co_return cancelled();
      if (done_) co_return std::string();
      CO_TRY(std::string bytes, take_body());
      if (done_) finish();
      if (!bytes.empty() || done_) co_return bytes;
      CO_TRY(const bool more, co_await receive(deadline));
      if (more) continue;
      if (framing_ != BodyFraming::kUntilClose)
        co_return fail(kDataLoss, fmt::format("{} closed in mid-answer", pool_->host));
      done_ = true;
      link_.reset();
    }
  }

  bool sent() const override { return was_sent_ || (link_ && sending_ && link_->all_sent()); }

  void cancel() override {
    // What is awaited ends inside these calls, and this object may go with it.
    const auto link = link_;
    const auto connecting = connecting_;
    cancelled_ = true;
    if (link) {
      link->close(CloseHow::kReset);
    } else if (connecting) {
      connecting->shot.set(cancelled());
    }
  }

 private:
  using Stream = Result<std::unique_ptr<ByteStream>>;
  struct Connecting {
    OneShot<Stream> shot;
  };

  Status may_send() const {
    if (cancelled_) return cancelled();
    if (pool_->clock.now() < send_by_) return {};
    return fail(kConflict, fmt::format("{} could not be reached in time", pool_->host));
  }

  Task<Result<std::shared_ptr<Link>>> connect(Instant deadline) {
    // The dialler may outlive this call.
    connecting_ = std::make_shared<Connecting>();
    const Duration left = deadline - pool_->clock.now();
    dial(pool_->clock, pool_->url, pool_->tls, std::min(left, pool_->options.connect_timeout),
         [weak = std::weak_ptr(connecting_)](Stream stream) {
           if (const auto to = weak.lock()) to->shot.set(std::move(stream));
         });
    Stream stream = co_await connecting_->shot;
    connecting_.reset();
    if (!stream) co_return std::unexpected(std::move(stream).error());
    ++pool_->counters.opened;
    co_return std::make_shared<Link>(pool_->clock, std::move(*stream));
  }

  // Appends what comes to in_; false at the end of the stream.
  Task<Result<bool>> receive(Instant deadline) {
    std::optional<std::string> bytes = co_await link_->pop(deadline);
    if (cancelled_) co_return cancelled();
    if (bytes) {
      link_->read();
      if (in_.empty()) {
        in_ = std::move(*bytes);
      } else {
        in_ += *bytes;
      }
      co_return true;
    }
    if (link_->open())
      co_return fail(kDeadlineExceeded, fmt::format("{} did not answer in time", pool_->host));
    co_return false;
  }

  Task<Result<UpstreamHead>> read_head(Instant deadline) {
    const HeadLimits limits;
    while (true) {
      HeadScan scan;
      std::optional<std::size_t> size;
      while (!size) {
        CO_TRY(size, find_head_end(in_, scan, limits));
        if (size) break;
        CO_TRY(const bool more, co_await receive(deadline));
        if (!more)
          co_return fail(kDataLoss, fmt::format("{} closed without an answer", pool_->host));
      }
      CO_TRY(ResponseHead head,
             parse_response_head(std::string_view(in_).substr(0, *size), limits));
      in_.erase(0, *size);
      if (head.status >= 100 && head.status < 200 && head.status != 101) continue;
      begin_body(head);
      if (done_) finish();
      co_return UpstreamHead{head.status, std::move(head.headers)};
    }
  }

  void begin_body(const ResponseHead& head) {
    keep_alive_ = head.keep_alive;
    if (no_body_ || head.status == 204 || head.status == 304) {
      framing_ = BodyFraming::kNone;
      done_ = true;
    } else if (head.chunked) {
      framing_ = BodyFraming::kChunked;
      chunks_.emplace(kAnyBody);
    } else if (head.content_length) {
      framing_ = BodyFraming::kLength;
      left_ = *head.content_length;
      done_ = left_ == 0;
    } else {
      framing_ = BodyFraming::kUntilClose;
    }
  }

  // Body bytes out of what has been received.
  Result<std::string> take_body() {
    std::string out;
    if (in_.empty()) return out;
    if (framing_ == BodyFraming::kChunked) {
      out.reserve(in_.size());
      TRY(const std::size_t used, chunks_->feed(in_, out));
      done_ = chunks_->done();
      in_.erase(0, used);
    } else if (framing_ == BodyFraming::kLength && in_.size() > left_) {
      out = in_.substr(0, left_);
      in_.erase(0, left_);
      done_ = true;
    } else {
      out = std::exchange(in_, {});
      if (framing_ == BodyFraming::kLength) {
        left_ -= out.size();
        done_ = left_ == 0;
      }
    }
    return out;
  }

  // The answer is complete: the connection may carry the next one.
  void finish() {
    auto link = std::exchange(link_, nullptr);
    if (keep_alive_ && in_.empty() && link->all_sent() && link->open()) {
      pool_->put(std::move(link));
    } else {
      link->close(CloseHow::kOrderly);
    }
  }

  std::shared_ptr<HttpUpstream::Pool> pool_;
  const bool no_body_;
  const Instant send_by_;
  std::shared_ptr<const std::string> own_body_;
  std::vector<std::string_view> body_;
  std::string request_head_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<Connecting> connecting_;
  std::string in_;  // received and not taken
  BodyFraming framing_ = BodyFraming::kNone;
  std::optional<ChunkDecoder> chunks_;
  std::uint64_t left_ = 0;
  bool keep_alive_ = false;
  bool done_ = false;
  bool cancelled_ = false;
  bool sending_ = false;   // link_ has the request
  bool was_sent_ = false;  // as a whole, on this link or another
};

}  // namespace

HttpUpstream::HttpUpstream(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

HttpUpstream::~HttpUpstream() {
  pool_->close();
}

Result<std::unique_ptr<HttpUpstream>> HttpUpstream::make(AsioClock& clock,
                                                         UpstreamOptions options) {
  TRY(Url url, parse_url(options.url));
  if (url.target.contains('?'))
    return fail(kInvalidArgument, fmt::format("{}: an engine's address has no query", options.url));
  std::shared_ptr<boost::asio::ssl::context> tls;
  if (url.tls) {
    TRY(tls, make_tls_client_context(options.ca_file, options.verify_certificate));
  }
  return std::unique_ptr<HttpUpstream>(new HttpUpstream(
      std::make_shared<Pool>(clock, std::move(options), std::move(url), std::move(tls))));
}

std::unique_ptr<UpstreamCall> HttpUpstream::call(UpstreamRequest request) {
  return std::make_unique<Call>(pool_, std::move(request));
}

void HttpUpstream::close() {
  pool_->close();
}

const UpstreamCounters& HttpUpstream::counters() const {
  return pool_->counters;
}

std::size_t HttpUpstream::idle_connections() const {
  return pool_->idle.size();
}

}  // namespace penstock::http
