// The socket's thread: connecting, reading, and what answers change.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "io/kv/client_state.h"

namespace penstock::kv {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr auto kAlivePeriod = std::chrono::seconds(1);
constexpr auto kLeasesPeriod = std::chrono::milliseconds(100);

}  // namespace

void KvClient::State::run_link() {
  std::vector<std::function<void()>> calls;
  for (bool more = true; more;) {
    {
      const std::lock_guard lock(mutex);
      more = !stopping;
      if (!more && socket.get() >= 0) drop("the client ends", calls);
    }
    if (more) step_link(calls);
    for (const std::function<void()>& call : calls)
      call();
    calls.clear();
  }
}

void KvClient::State::step_link(std::vector<std::function<void()>>& calls) {
  pollfd ready[2] = {{link_event.fd(), POLLIN, 0}, {socket.get(), POLLIN, 0}};
  int timeout = 0;
  {
    const std::lock_guard lock(mutex);
    if (!output.empty()) ready[1].events |= POLLOUT;
    timeout = link_timeout_ms(socket.get() >= 0);
  }
  ::poll(ready, 2, timeout);
  if (ready[0].revents != 0) link_event.clear();
  if (socket.get() < 0) {
    if (SteadyClock::now() >= next_attempt) try_connect();
    return;
  }
  if ((ready[1].revents & ~POLLOUT) != 0) read(calls);
  const std::lock_guard lock(mutex);
  if (socket.get() < 0) return;
  if (!output.empty() && !output.flush(socket.get())) drop("it does not take what we send", calls);
  const auto now = SteadyClock::now();
  if (up && !leases.empty() && now >= next_alive) {
    next_alive = now + kAlivePeriod;
    (void)send(Alive{});
  }
  expire_leases(calls);
  if (hangs()) drop("it has neither answered a store nor taken anything for too long", calls);
}

// Until the next attempt to connect, or the next look at leases.
int KvClient::State::link_timeout_ms(bool has_socket) const {
  auto next = next_attempt;
  if (has_socket) {
    next = SteadyClock::time_point::max();
    const auto now = SteadyClock::now();
    if (!leases.empty()) next = now + kLeasesPeriod;
    // Before the first look at what is owed the times are old, and this ends at once.
    if (!stores.empty()) next = std::min(next, answered_at + options.store_time_max);
    if (!output.empty()) next = std::min(next, read_at + options.store_time_max);
    if (next == SteadyClock::time_point::max()) return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - SteadyClock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

// Whether the daemon is stopped or stuck. Time counts from the first look after it began to owe
// something.
bool KvClient::State::hangs() {
  const auto now = SteadyClock::now();
  if (!owes_answers) answered_at = now;
  if (!owes_reading || output.sent() != output_sent) read_at = now;
  owes_answers = !stores.empty();
  owes_reading = !output.empty();
  output_sent = output.sent();
  return (owes_answers && now - answered_at >= options.store_time_max) ||
         (owes_reading && now - read_at >= options.store_time_max);
}

void KvClient::State::try_connect() {
  Result<Descriptor> connected = sockets::connect_to(options.socket);
  const std::lock_guard lock(mutex);
  if (!connected) {
    pause = std::clamp(2 * pause, options.backoff_min, options.backoff_max);
    next_attempt = SteadyClock::now() + pause;
    if (failure != connected.error().message) {
      failure = connected.error().message;
      log(failure);
    }
    return;
  }
  socket = std::move(*connected);
  input = FrameBuffer();
  descriptors.clear();
  ++connection;
  (void)send(Hello{kKvProtocolVersion, "worker", options.name, ::getpid(), key_check});
}

void KvClient::State::read(std::vector<std::function<void()>>& calls) {
  char* to = input.reserve(kReadBytes);
  const auto got = sockets::receive(socket.get(), to, kReadBytes, descriptors);
  if (got && !*got) return;
  const std::lock_guard lock(mutex);
  if (!got || **got == 0) return drop(got ? "it has ended" : got.error().message, calls);
  input.commit(**got);
  for (;;) {
    const auto next = input.next();
    if (next && !*next) return;
    auto message = next ? decode_daemon(**next) : std::unexpected(next.error());
    if (!message) return drop(message.error().message, calls);
    if (auto* welcome = std::get_if<Welcome>(&*message)) {
      handle(std::move(*welcome));
      if (!up) return drop(std::string(failure), calls);
    } else if (auto* granted = std::get_if<Granted>(&*message)) {
      handle(std::move(*granted), calls);
    } else if (auto* stored = std::get_if<Stored>(&*message)) {
      handle(std::move(*stored), calls);
    } else if (auto* answer = std::get_if<LookupAnswer>(&*message)) {
      handle(std::move(*answer));
    } else if (const auto* goodbye = std::get_if<Goodbye>(&*message)) {
      return drop("it says: " + goodbye->reason, calls);
    }
    if (socket.get() < 0) return;  // the answer made no sense
  }
}

// The session is over. Our side is shut first: the daemon takes nothing more out of the engine's
// memory from then on, so that it may be written again when `done` is called.
void KvClient::State::drop(std::string_view why, std::vector<std::function<void()>>& calls) {
  if (up || failure != why)
    log(fmt::format("the KV daemon at {} is gone: {}", options.socket, why));
  failure = why;
  ::shutdown(socket.get(), SHUT_RDWR);
  socket = Descriptor();
  up = false;
  output.clear();
  owes_answers = owes_reading = false;
  arena.reset();
  pause = std::clamp(2 * pause, options.backoff_min, options.backoff_max);
  next_attempt = SteadyClock::now() + pause;
  for (const auto& [id, lease] : leases) {
    if (lease->final) continue;
    went_without(*lease);
    if (auto wake = wake_of(*lease)) calls.push_back(std::move(wake));
  }
  for (auto& [number, store] : stores)
    calls.push_back([done = std::move(store.done)] { done(0); });
  stores.clear();
  store_bytes = 0;
  lookups.clear();
  changed.notify_all();
}

void KvClient::State::handle(Welcome welcome) {
  up = false;
  if (welcome.protocol_version != kKvProtocolVersion) {
    failure = fmt::format("it speaks version {} of the protocol, not {}", welcome.protocol_version,
                          kKvProtocolVersion);
  } else if (descriptors.size() != 1) {
    failure = "its arena did not come with its welcome";
  } else if (Result<Mapping> mapping = map_to_read(descriptors[0].get(), welcome.arena_bytes);
             !mapping) {
    failure = mapping.error().message;
  } else {
    arena = std::make_shared<Mapping>(std::move(*mapping));
    classes = std::move(welcome.classes);
    pause = {};
    failure.clear();
    ++counters.connections;
    for (std::uint32_t pool = 0; pool < pools.size(); ++pool)
      send_registration(pool);
    for (const ClientRoot& root : roots)
      send_registration(root);
    send_missed();
    up = true;
    changed.notify_all();
  }
  descriptors.clear();
}

bool KvClient::State::fits(const KvLease& lease, const Granted& granted) const {
  const auto inside = [&](const PinnedBlock& block, KvGroup group) {
    const std::uint64_t bytes = lease.pool->spec.bytes(group);
    const std::uint64_t size = lease.arena->memory().size();
    return block.checksums.size() == lease.pool->spec.slices(group).size() && bytes <= size &&
           block.offset <= size - bytes;
  };
  return lease.history.size() + granted.history.size() <= lease.keys.size() &&
         std::ranges::all_of(granted.history,
                             [&](const auto& b) { return inside(b, KvGroup::kHistory); }) &&
         std::ranges::all_of(granted.windows, [&](const auto& window) {
           return window.first < lease.keys.size() && inside(window.second, KvGroup::kWindow);
         });
}

void KvClient::State::handle(Granted granted, std::vector<std::function<void()>>& calls) {
  const auto it = leases.find(granted.lease);
  // Of a lease that was released, or given up here, meanwhile.
  if (it == leases.end() || it->second->final || it->second->connection != connection) return;
  KvLease& lease = *it->second;
  if (!fits(lease, granted)) return drop("it granted blocks that nobody asked for", calls);
  std::ranges::move(granted.history, std::back_inserter(lease.history));
  for (auto& [depth, block] : granted.windows)
    lease.windows.emplace(depth, std::move(block));
  lease.final = granted.final;
  if (granted.final) lease.missing = granted.missing;
  if (auto wake = wake_of(lease)) calls.push_back(std::move(wake));
  changed.notify_all();
}

void KvClient::State::handle(Stored stored, std::vector<std::function<void()>>& calls) {
  const auto it = stores.find(stored.number);
  if (it == stores.end() || it->second.history.size() != stored.results.size()) {
    return drop("it stored what nobody offered", calls);
  }
  answered_at = SteadyClock::now();
  PendingStore& pending = it->second;
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < stored.results.size(); ++i)
    kept += pending.history[i] && stored.results[i] == MissReason::kNone ? 1U : 0U;
  counters.blocks_stored += kept;
  store_bytes -= pending.bytes;
  calls.push_back([done = std::move(pending.done), kept] { done(kept); });
  stores.erase(it);
}

void KvClient::State::handle(LookupAnswer answer) {
  const auto it = lookups.find(answer.number);
  if (it == lookups.end()) return;
  it->second->answered = true;
  it->second->tiers = std::move(answer.tiers);
  lookups.erase(it);
  changed.notify_all();
}

// The lease has no daemon, or none any more.
void KvClient::State::went_without(KvLease& lease) {
  lease.final = true;
  lease.missing = MissReason::kNoDaemon;
  if (lease.asked.request.empty()) return;  // nobody can ask about it
  MissedRequest& told = missed.emplace_back(std::move(lease.asked));
  for (const PinnedBlock& block : lease.history)
    told.served.push_back(block.from);
  if (missed.size() > kMissedMax) missed.pop_front();
}

void KvClient::State::send_missed() {
  if (missed.empty()) return;
  const Missed message{{missed.begin(), missed.end()}};
  if (send(message)) missed.clear();
}

// A daemon that hangs must not make an engine wait: past its budget a lease is what it is.
void KvClient::State::expire_leases(std::vector<std::function<void()>>& calls) {
  const auto now = SteadyClock::now();
  for (const auto& [id, lease] : leases) {
    if (lease->final || now < lease->deadline) continue;
    lease->final = true;
    lease->missing = MissReason::kTooSlow;
    if (auto wake = wake_of(*lease)) calls.push_back(std::move(wake));
  }
}

Status KvClient::State::send(const ClientMessage& message, int descriptor) {
  frame.clear();
  TRY_STATUS(append_frame(message, frame));
  if (output.bytes() + frame.size() > options.output_bytes_max) {
    return fail(ErrorCode::kOverloaded, "the KV daemon does not take what it is sent");
  }
  output.push(frame, descriptor);
  // A broken socket is the link thread's to notice.
  if (const Result<bool> sent = output.flush(socket.get()); sent && !*sent) link_event.wake();
  return {};
}

void KvClient::State::send_registration(std::uint32_t pool) {
  const ClientPool& p = pools[pool];
  (void)send(RegisterPool{pool, p.bytes, p.spec}, p.fd.get());
}

void KvClient::State::send_registration(const ClientRoot& root) {
  (void)send(RegisterRoot{root.key, root.scope, root.build, pools[root.pool].spec});
}

std::function<void()> KvClient::State::wake_of(KvLease& lease) {
  if (!lease.wake) return {};
  ++lease.callbacks;
  return [this, &lease] {
    lease.wake();
    const std::lock_guard lock(mutex);
    --lease.callbacks;
    changed.notify_all();
  };
}

}  // namespace penstock::kv
