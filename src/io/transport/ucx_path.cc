#include "io/transport/ucx_path.h"

#include "io/transport/transport_options.h"

#if PENSTOCK_UCX

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/hashed_copy.h"
#include "io/transport/hub.h"
#include "io/transport/ucx_worker.h"

namespace penstock::transport {
namespace {

constexpr std::uint32_t kPieceBytes = 1 << 20;

std::unexpected<Error> out_of_place() {
  return fail(ErrorCode::kInvalidArgument, "it sent a frame out of place");
}

// One side's endpoint at the other's worker.
class Endpoint {
 public:
  Status open(Hub& hub, const std::string& address, const Token& token, UcxWorker::Side side) {
    TRY(worker_, hub.ucx());
    TRY(endpoint_, worker_->connect(address, token, side));
    return {};
  }
  void close() {
    if (endpoint_ != nullptr) worker_->disconnect(std::exchange(endpoint_, nullptr));
  }
  UcxWorker* worker() const { return worker_; }
  ucp_ep_h get() const { return endpoint_; }

 private:
  UcxWorker* worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

class Owner final : public DataPath {
 public:
  explicit Owner(Connection& connection) : connection_(connection) {}
  ~Owner() override { shut(); }

  Result<Welcome> greeted(const Hello& hello) override {
    if (hello.details.empty()) return out_of_place();
    token_ = random_token();
    TRY_STATUS(endpoint_.open(connection_.hub(), hello.details, token_, UcxWorker::Side::kOwner));
    return Welcome{Driver::kUcx, 0, token_, endpoint_.worker()->address()};
  }

  Status frame(Kind kind, std::string_view body) override {
    if (kind == Kind::kCancel) return {};  // pieces are short: it ends with the one under way
    if (kind != Kind::kRead) return out_of_place();
    TRY(const ReadRequest request, decode_read(body));
    if (request.slice.length > kPieceBytes || *sending_ >= kReadsMax)
      return fail(ErrorCode::kOverloaded, "it sent more reads than a connection may have");
    const Hub::Look look = connection_.hub().look(connection_.peer(), request.slice);
    if (endpoint_.get() == nullptr) return {};
    if (look.end != ReadEnd::kDone) {
      connection_.control().push(encode(Verdict{request.id, look.end}));
      return {};
    }
    ++*sending_;
    endpoint_.worker()->send(endpoint_.get(), token_, request.id, look.bytes,
                             [this, alive = std::weak_ptr(sending_), request](bool good) {
                               if (alive.expired()) return;
                               --*sending_;
                               sent(request, good);
                             });
    return {};
  }
  void shut() override { endpoint_.close(); }
  void published(std::uint32_t) override {}

  Hello hello() override { return {}; }
  Status welcomed(const Welcome&) override { return out_of_place(); }
  void start_read(std::uint64_t, const RemoteSlice&, std::byte*) override { ENSURE(false); }
  void abandon(std::uint64_t) override {}

 private:
  void sent(const ReadRequest& request, bool good) {
    if (endpoint_.get() == nullptr) return;
    if (!good) return connection_.fail_with("UCX could not send to the peer");
    connection_.control().push(
        encode(Verdict{request.id, connection_.hub().look_again(request.slice)}));
  }

  Connection& connection_;
  Token token_{};
  Endpoint endpoint_;
  // Under way; its end tells callbacks that this object has gone.
  std::shared_ptr<std::size_t> sending_ = std::make_shared<std::size_t>(0);
};

class Reader final : public DataPath {
 public:
  explicit Reader(Connection& connection) : connection_(connection) {}
  ~Reader() override { shut(); }

  Hello hello() override {
    const auto worker = connection_.hub().ucx();
    return {Driver::kUcx, 0, worker ? (*worker)->invite() : ""};
  }
  Status welcomed(const Welcome& welcome) override {
    if (welcome.details.empty()) return out_of_place();
    token_ = welcome.token;
    TRY_STATUS(
        endpoint_.open(connection_.hub(), welcome.details, token_, UcxWorker::Side::kReader));
    endpoint_.worker()->expect(token_, [this](std::uint64_t read, auto bytes) {
      if (Status taken = take(read, bytes); !taken) connection_.fail_with(taken.error().message);
    });
    connection_.ready();
    return {};
  }

  void start_read(std::uint64_t read, const RemoteSlice& slice, std::byte* into) override {
    Asked& asked = asked_[read];
    asked.slice = slice;
    asked.into = into;
    ask(read, asked);
  }
  void abandon(std::uint64_t read) override { asked_.erase(read); }

  Status frame(Kind kind, std::string_view body) override {
    if (kind != Kind::kVerdict) return out_of_place();
    TRY(const Verdict verdict, decode_verdict(body));
    const auto at = asked_.find(verdict.id);
    if (at == asked_.end()) return {};  // nobody wants it any more
    if (verdict.end != ReadEnd::kDone) {
      asked_.erase(at);
      connection_.hub().read_ended(verdict.id, verdict.end);
      return {};
    }
    if (at->second.has_verdict) return out_of_place();
    at->second.has_verdict = true;
    advance(at);
    return {};
  }
  void shut() override {
    if (endpoint_.worker() != nullptr) endpoint_.worker()->forget(token_);
    endpoint_.close();
    asked_.clear();
  }

  Result<Welcome> greeted(const Hello&) override { return out_of_place(); }
  void published(std::uint32_t) override {}

 private:
  struct Asked {
    RemoteSlice slice;
    std::byte* into = nullptr;
    std::uint32_t done = 0;  // bytes of the pieces before this one
    bool has_bytes = false;  // of this piece
    bool has_verdict = false;
    HashedCopy copy;
    std::uint32_t piece() const { return std::min(kPieceBytes, slice.length - done); }
  };
  using AskedMap = std::map<std::uint64_t, Asked>;

  void ask(std::uint64_t read, const Asked& asked) {
    RemoteSlice piece = asked.slice;
    piece.offset += asked.done;
    piece.length = asked.piece();
    connection_.control().push(encode(ReadRequest{read, piece}));
  }

  Status take(std::uint64_t read, std::span<const std::byte> bytes) {
    const auto at = asked_.find(read);
    if (at == asked_.end()) return {};
    Asked& asked = at->second;
    if (asked.has_bytes || bytes.size() != asked.piece())
      return fail(ErrorCode::kDataLoss, "it sent bytes that nobody asked for");
    asked.copy.add(asked.into + asked.done, bytes);
    asked.has_bytes = true;
    advance(at);
    return {};
  }

  void advance(AskedMap::iterator at) {
    Asked& asked = at->second;
    if (!asked.has_bytes || !asked.has_verdict) return;
    asked.done += asked.piece();
    asked.has_bytes = asked.has_verdict = false;
    if (asked.done < asked.slice.length) return ask(at->first, asked);
    const std::uint64_t read = at->first;
    const bool right = asked.copy.checksum() == asked.slice.checksum;
    asked_.erase(at);
    connection_.hub().read_ended(read, right ? ReadEnd::kDone : ReadEnd::kCorrupt);
  }

  Connection& connection_;
  Token token_{};
  Endpoint endpoint_;
  AskedMap asked_;
};

}  // namespace

bool has_ucx() {
  return true;
}

std::unique_ptr<DataPath> ucx_owner(Connection& connection) {
  return std::make_unique<Owner>(connection);
}

std::unique_ptr<DataPath> ucx_reader(Connection& connection) {
  return std::make_unique<Reader>(connection);
}

}  // namespace penstock::transport

#else

namespace penstock::transport {

bool has_ucx() {
  return false;
}

// Never called: addresses of ucx are refused before.
std::unique_ptr<DataPath> ucx_owner(Connection&) {
  return nullptr;
}

std::unique_ptr<DataPath> ucx_reader(Connection&) {
  return nullptr;
}

}  // namespace penstock::transport

#endif
