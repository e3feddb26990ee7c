#include "io/kv/peer_link.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::kv {

using peer::Op;

Result<std::unique_ptr<PeerLink>> PeerLink::start(const sockets::TcpAddress& address,
                                                  std::string name, peer::PeerProofs& proofs,
                                                  bool subscribes, Instant now) {
  TRY(Descriptor socket, sockets::start_connecting(address));
  std::unique_ptr<PeerLink> link(new PeerLink(std::move(socket), address.text, proofs, subscribes));
  link->heard_ = now;
  link->say(Op::kHello, 0, peer::hello_body({link->nonce_, std::move(name)}));
  return link;
}

std::unexpected<Error> PeerLink::broken(std::string_view what) const {
  return fail(ErrorCode::kUnavailable, fmt::format("KV peer {}: {}", where_, what));
}

void PeerLink::say(Op op, std::uint64_t request, std::string_view body) {
  output_ += peer::frame({op, request, epoch_, 0}, body);
}

void PeerLink::ask(std::vector<TierRead> reads, Duration budget, Instant now) {
  ENSURE(open());
  if (reads_.empty()) heard_ = now;
  while (!reads.empty()) {
    const std::size_t count = std::min(reads.size(), peer::kReadBlocksMax);
    service::Fetch fetch;
    fetch.root = reads.front().asked.root;
    fetch.ttl_class = reads.front().asked.ttl_class;
    fetch.tenant = reads.front().asked.tenant;
    fetch.budget = budget;
    const std::uint64_t first = last_number_ + 1;
    for (std::size_t i = 0; i < count; ++i) {
      TierRead& read = reads[i];
      fetch.blocks.push_back({read.name, read.asked.parent, read.asked.depth});
      outstanding_bytes_ += read.destination.size();
      reads_.emplace(++last_number_, std::move(read));
    }
    reads.erase(reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(count));
    say(Op::kRead, first, peer::read_body(fetch));
  }
}

void PeerLink::report(const BlockName& name) {
  ENSURE(open());
  say(Op::kDamaged, 0, peer::damaged_body(name));
}

std::vector<TierRead> PeerLink::give_up() {
  std::vector<TierRead> reads;
  if (payload_) reads.push_back(std::move(payload_->read));
  for (auto& [number, read] : reads_)
    reads.push_back(std::move(read));
  payload_.reset();
  reads_.clear();
  return reads;
}

Status PeerLink::step(Instant now, News& news) {
  if (state_ == State::kConnecting) {
    if (const Status status = sockets::connected(socket_.get()); !status)
      return broken(status.error().message);
    // Not writable yet: the first send says so.
  }
  TRY_STATUS(send());
  if (state_ == State::kConnecting) return {};
  TRY_STATUS(receive(now, news));
  return send();
}

Status PeerLink::send() {
  while (sent_ < output_.size()) {
    const ssize_t n = ::send(socket_.get(), output_.data() + sent_, output_.size() - sent_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    // ENOTCONN: the connection is still under way.
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) return {};
    if (n < 0) return broken(std::strerror(errno));
    if (state_ == State::kConnecting) state_ = State::kProving;
    sent_ += static_cast<std::size_t>(n);
  }
  output_.clear();
  sent_ = 0;
  return {};
}

Status PeerLink::receive(Instant now, News& news) {
  for (std::size_t total = 0; total < kTurnBytes;) {
    TRY(const std::size_t got, receive_some(news));
    if (got == 0) return {};
    heard_ = now;
    total += got;
    TRY_STATUS(take_frames(news));
  }
  return {};
}

Result<std::size_t> PeerLink::receive_some(News& news) {
  // Into the place of the payload that is arriving, and what lies behind it onto the stage.
  iovec parts[2];
  std::size_t count = 0;
  std::size_t direct = 0;
  if (payload_) {
    direct = std::min(payload_->bytes - payload_->got, kReceiveBytes);
    parts[count++] = {payload_->read.destination.data() + payload_->got, direct};
  }
  const bool stages = !payload_ || payload_->got + direct == payload_->bytes;
  const std::size_t staged = stage_.size();
  if (stages) {
    // What is staged of a payload is copied once more, so little is, while blocks may come.
    const std::size_t room = reads_.empty() && !payload_ ? kListBytes : kStageBytes;
    stage_.resize(staged + room);
    parts[count++] = {stage_.data() + staged, room};
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  const std::size_t got = n > 0 ? static_cast<std::size_t>(n) : 0;
  if (stages) stage_.resize(staged + (got > direct ? got - direct : 0));
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (n < 0) return broken(std::strerror(errno));
  if (n == 0) return broken("it has closed the connection");
  if (payload_) fill(std::min(got, direct), news);
  return got;
}

void PeerLink::fill(std::size_t bytes, News& news) {
  Payload& payload = *payload_;
  payload.got += bytes;
  news.bytes += bytes;
  const std::vector<SliceSum>& slices = payload.info.slices;
  while (payload.slice < slices.size()) {
    const SliceSum& slice = slices[payload.slice];
    if (payload.slice_begin + slice.bytes > payload.got) break;
    const std::span<const std::byte> arrived =
        payload.read.destination.subspan(payload.slice_begin, slice.bytes);
    payload.corrupt |= checksum64(arrived) != slice.checksum;
    payload.slice_begin += slice.bytes;
    ++payload.slice;
  }
  if (payload.got < payload.bytes) return;
  outstanding_bytes_ -= payload.read.destination.size();
  news.arrivals.push_back({std::move(payload.read),
                           payload.corrupt ? MissReason::kCorrupt : MissReason::kNone,
                           std::move(payload.info)});
  payload_.reset();
}

Status PeerLink::take_frames(News& news) {
  std::string_view rest = stage_;
  while (!payload_ && rest.size() >= peer::kHeaderBytes) {
    TRY(const peer::Header header, peer::decode_header(rest.substr(0, peer::kHeaderBytes)));
    const std::size_t bytes = peer::kHeaderBytes + header.length;
    if (rest.size() < bytes) break;
    TRY_STATUS(take(header, rest.substr(peer::kHeaderBytes, header.length), news));
    rest.remove_prefix(bytes);
    if (payload_) {
      const std::size_t copied = std::min(rest.size(), payload_->bytes);
      std::memcpy(payload_->read.destination.data(), rest.data(), copied);
      rest.remove_prefix(copied);
      fill(copied, news);
    }
  }
  stage_.erase(0, stage_.size() - rest.size());
  return {};
}

Status PeerLink::take(const peer::Header& header, std::string_view body, News& news) {
  if (header.op == Op::kGoodbye) return broken(body);
  if (state_ == State::kProving && header.op == Op::kChallenge) {
    TRY(const peer::Challenge challenge, peer::decode_challenge(body));
    if (!peer::same_proof(challenge.proof,
                          proofs_.of_server(nonce_, challenge.nonce, header.epoch))) {
      return broken("it has another deployment secret; give both hosts the same --kv-secret-file");
    }
    epoch_ = header.epoch;
    say(Op::kProof, 0, peer::proof_body(proofs_.of_client(nonce_, challenge.nonce, epoch_)));
    state_ = State::kWaiting;
    return {};
  }
  if (header.epoch != epoch_) return broken("it answers from another run");
  if (state_ == State::kWaiting && header.op == Op::kWelcome) {
    state_ = State::kOpen;
    if (subscribes_) say(Op::kSubscribe, 0, {});
    return {};
  }
  if (state_ != State::kOpen) return broken("it does not follow the protocol");
  if (header.op == Op::kBlock) return take_block(header, body, news);
  if (header.op != Op::kHoldings || !subscribes_) return broken("it does not follow the protocol");
  TRY(peer::Holdings holdings, peer::decode_holdings(body));
  news.holdings.push_back(std::move(holdings));
  return {};
}

Status PeerLink::take_block(const peer::Header& header, std::string_view body, News& news) {
  const auto read = reads_.find(header.request);
  if (read == reads_.end()) return broken("it sends a block that was not asked for");
  TRY(peer::Block block, peer::decode_block(body));
  if (block.reason != MissReason::kNone) {
    outstanding_bytes_ -= read->second.destination.size();
    news.arrivals.push_back({std::move(read->second), block.reason, {}});
    reads_.erase(read);
    return {};
  }
  const std::size_t bytes = block.info.bytes();
  if (block.info.name != read->second.name || bytes > read->second.destination.size())
    return broken("it sends another block than it was asked for");
  payload_ = Payload{std::move(read->second), std::move(block.info), bytes};
  reads_.erase(read);
  return {};
}

}  // namespace penstock::kv
