#include "service/kvd/admin.h"

#include <algorithm>
#include <boost/json.hpp>

#include "service/kvd/describe.h"

namespace penstock::service {
namespace {

namespace json = boost::json;

constexpr std::size_t kRowsDefault = 100;
constexpr std::size_t kRowsMax = 1000;
constexpr std::size_t kBadListed = 100;
constexpr std::size_t kSlotsPerStep = 1024;
constexpr Duration kProgressEvery = std::chrono::seconds(1);

Result<json::object> parse_arguments(const std::string& text) {
  if (text.empty()) return json::object{};
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object())
    return fail(ErrorCode::kInvalidArgument, "the arguments of a kv command must be a JSON object");
  return value.get_object();
}

Result<std::string> text_of(const json::object& arguments, std::string_view name) {
  const json::value* value = arguments.if_contains(name);
  if (value == nullptr) return std::string();
  if (!value->is_string())
    return fail(ErrorCode::kInvalidArgument, "must be a string", std::string(name));
  return std::string(value->get_string());
}

Result<std::size_t> number_of(const json::object& arguments, std::string_view name,
                              std::size_t absent) {
  const json::value* value = arguments.if_contains(name);
  if (value == nullptr) return absent;
  boost::system::error_code error;
  const auto number = value->to_number<std::uint64_t>(error);
  if (error) return fail(ErrorCode::kInvalidArgument, "must be a whole number", std::string(name));
  return number;
}

Result<bool> flag_of(const json::object& arguments, std::string_view name) {
  const json::value* value = arguments.if_contains(name);
  if (value != nullptr && !value->is_bool())
    return fail(ErrorCode::kInvalidArgument, "must be true or false", std::string(name));
  return value != nullptr && value->get_bool();
}

Result<std::optional<BlockKey>> key_of(const json::object& arguments, std::string_view name) {
  TRY(const std::string text, text_of(arguments, name));
  if (text.empty()) return std::nullopt;
  const auto key = parse_key(text);
  if (!key)
    return fail(ErrorCode::kInvalidArgument, "must be 32 hexadecimal digits", std::string(name));
  return key;
}

Result<std::string> list(const Inside& inside, const json::object& arguments, TierNow now) {
  TRY(const auto root, key_of(arguments, "root"));
  TRY(const auto after, key_of(arguments, "after"));
  TRY(const std::size_t first, number_of(arguments, "first", 0));
  TRY(const std::size_t asked, number_of(arguments, "limit", kRowsDefault));
  const std::size_t limit = std::clamp<std::size_t>(asked, 1, kRowsMax);
  TRY(const bool all, flag_of(arguments, "details"));
  const Details details = all ? Details::kAll : Details::kFew;
  return json::serialize(root ? describe_blocks(inside, *root, first, limit, details, now.now)
                              : describe_roots(inside, after, limit, details));
}

Result<std::string> explain(const Inside& inside, const json::object& arguments, TierNow now) {
  TRY(const std::string request, text_of(arguments, "request"));
  if (request.empty())
    return fail(ErrorCode::kInvalidArgument, "say which request: its id is in the access log",
                "request");
  json::array acquires = describe_acquires(inside, request);
  if (acquires.empty())
    return fail(ErrorCode::kNotFound,
                "no recent request of that id asked this KV daemon for blocks; it remembers the "
                "last " +
                    std::to_string(AcquireRecords::kRecordsMax) + " since it was started " +
                    std::to_string(now.wall.value - inside.started.value) + " s ago",
                "request");
  return json::serialize(
      json::object{{"acquires", std::move(acquires)}, {"daemon_started", inside.started.value}});
}

json::object describe_garbage(bool dry_run, std::size_t orphans, std::uint64_t corrupt_bytes) {
  return {
      {"dry_run", dry_run}, {"orphan_blocks", orphans}, {"corrupt_bytes_reused", corrupt_bytes}};
}

json::object describe_sweep(const ClusterGcNumbers& run, const ClusterTier& tier) {
  return {{"manifests", run.manifests},
          {"swept", run.swept},
          {"names", run.names},
          {"removed", run.removed},
          {"removed_bytes", run.removed_bytes},
          {"kept", run.kept},
          {"target_bytes", tier.bytes_max()},
          {"whole", run.failures == 0},
          {"state", tier.stats().state}};
}

}  // namespace

void Admin::handle(kv::SessionId session, const kv::Admin& command, const SessionNumbers& sessions,
                   TierNow now, Outbox& outbox) {
  const auto refuse = [&](Error error) {
    outbox.send(session, kv::AdminAnswer{command.number, std::move(error), {}, true});
  };
  const auto arguments = parse_arguments(command.arguments);
  if (!arguments) return refuse(arguments.error());
  if (command.command == "verify") {
    if (const Status started = start_verify(session, command.number, *arguments, now); !started)
      refuse(started.error());
  } else if (command.command == "flush") {
    if (flushes_.size() >= kFlushesMax)
      return refuse({ErrorCode::kOverloaded, "too many flushes wait already", {}, {}});
    flushes_.emplace_back(session, command.number);
  } else if (command.command == "gc") {
    auto text = collect_garbage(session, command.number, *arguments, now);
    if (!text) return refuse(std::move(text).error());
    if (*text) outbox.send(session, kv::AdminAnswer{command.number, {}, std::move(**text), true});
  } else if (auto text = answer(command, *arguments, sessions, now); text) {
    outbox.send(session, kv::AdminAnswer{command.number, {}, std::move(*text), true});
  } else {
    refuse(std::move(text).error());
  }
}

Result<std::string> Admin::answer(const kv::Admin& command, const json::object& arguments,
                                  const SessionNumbers& sessions, TierNow now) {
  if (command.command == "stat") return json::serialize(describe_stat(inside_, sessions, now));
  if (command.command == "ls") return list(inside_, arguments, now);
  if (command.command == "explain") return explain(inside_, arguments, now);
  return fail(ErrorCode::kNotFound, "no such command: \"" + command.command +
                                        "\"; there are stat, ls, explain, verify, gc and flush");
}

Result<std::optional<std::string>> Admin::collect_garbage(kv::SessionId session,
                                                          std::uint64_t number,
                                                          const json::object& arguments,
                                                          TierNow now) {
  TRY(const bool dry_run, flag_of(arguments, "dry_run"));
  const auto sweep = std::make_shared<Sweep>(session, number, dry_run);
  const bool sweeps = inside_.cluster != nullptr && inside_.cluster->sweeps();
  if (sweeps) {
    const auto done = [told = std::weak_ptr(sweep)](const ClusterGcNumbers& numbers) {
      if (const auto waiting = told.lock()) waiting->numbers = numbers;
    };
    if (!inside_.cluster->sweep(dry_run, done))
      return fail(ErrorCode::kConflict, "a gc is running already; wait until it has ended");
    sweep_ = sweep;
  }
  const std::uint64_t corrupt = inside_.holdings.host().usage().corrupt_bytes;
  const std::size_t orphans = inside_.holdings.drop_orphans(dry_run, now);
  if (!dry_run) inside_.holdings.host().release_corrupt();
  if (!sweeps) return json::serialize(describe_garbage(dry_run, orphans, corrupt));
  sweep->orphans = orphans;
  sweep->corrupt_bytes = corrupt;
  return std::nullopt;
}

Status Admin::start_verify(kv::SessionId session, std::uint64_t number,
                           const json::object& arguments, TierNow now) {
  TRY(const std::string tier, text_of(arguments, "tier"));
  if (!tier.empty() && tier != "all" && tier != "host" && tier != "disk")
    return fail(ErrorCode::kInvalidArgument, "must be host, disk or all", "tier");
  if (verify_)
    return fail(ErrorCode::kConflict, "a verify is running already; wait until it has ended");
  VerifyJob& verify = verify_.emplace();
  verify.session = session;
  verify.number = number;
  verify.job = ++last_job_;
  verify.told = now.now;
  verify.host_done = tier == "disk";
  if (!verify.host_done) verify.host_total = inside_.holdings.host().usage().blocks;
  if (inside_.holdings.disk() != nullptr && tier != "host") {
    verify.parts = inside_.holdings.disk()->parts();
    verify.disk_total = inside_.holdings.disk()->stats().blocks;
  }
  return {};
}

bool Admin::wants_read() const {
  const bool is_left =
      verify_ && (verify_->next < verify_->on_disk.size() || verify_->part < verify_->parts);
  return is_left && !waits_for_room_ && in_flight_ < kReadsInFlightMax;
}

bool Admin::has_read_all() const {
  return verify_->part == verify_->parts && verify_->next == verify_->on_disk.size() &&
         in_flight_ == 0;
}

bool Admin::has_work() const {
  if (!verify_) return false;
  return !verify_->host_done || wants_read() || has_read_all();
}

void Admin::work(TierNow now, Outbox& outbox) {
  if (!verify_) return;
  VerifyJob& verify = *verify_;
  if (!verify.host_done) {
    verify_host(now);
  } else if (wants_read()) {
    verify_disk(now);
  }
  const bool is_over = verify.host_done && has_read_all();
  if (!is_over && now.now - verify.told < kProgressEvery) return;
  verify.told = now.now;
  outbox.send(verify.session, kv::AdminAnswer{verify.number, {}, progress(), is_over});
  if (is_over) verify_.reset();
}

void Admin::verify_host(TierNow now) {
  VerifyJob& verify = *verify_;
  HostTier& host = inside_.holdings.host();
  for (std::size_t looks = 0; looks < kSlotsPerStep; ++looks) {
    if (verify.slot >= host.slots()) {
      verify.host_done = true;
      return;
    }
    const auto block = host.sealed_in_slot(verify.slot++);
    if (!block) continue;
    ++verify.host_blocks;
    verify.bytes += host.at(*block).bytes;
    const BlockName name = host.at(*block).info.name;
    if (!inside_.holdings.check_copy(*block, now)) found_bad(KvTier::kHost, name);
    return;
  }
}

void Admin::verify_disk(TierNow now) {
  VerifyJob& verify = *verify_;
  BlockTier& disk = *inside_.holdings.disk();
  if (verify.next == verify.on_disk.size()) {
    verify.on_disk.clear();
    verify.next = 0;
    disk.for_each_in(verify.part++, [&](const BlockName& found, std::uint32_t) {
      verify.on_disk.push_back(found);
      return true;
    });
    return;
  }
  const BlockName name = verify.on_disk[verify.next];
  const auto bytes = disk.size_of(name);
  inside_.holdings.take_evicted();
  const bool room = bytes && *bytes > 0 && inside_.holdings.make_room(*bytes, now);
  if (!room) {
    // Gone meanwhile, or everything in the arena is in use: reads under way will give room.
    waits_for_room_ = bytes && *bytes > 0 && in_flight_ > 0;
    if (waits_for_room_) return;
    ++verify.gone;
    ++verify.next;
    return;
  }
  if (inside_.holdings.take_evicted()) return;  // the place is written in a later turn
  Read read{verify.job, name, *inside_.holdings.host().take_scratch(*bytes), *bytes,
            MissReason::kNone};
  ++verify.next;
  ++in_flight_;
  disk.read({name, inside_.holdings.scratch(read.offset, read.bytes),
             [reads = reads_, read](MissReason reason, const BlockInfo&) mutable {
               read.reason = reason;
               reads->push_back(read);
             }});
}

void Admin::finish(Outbox& outbox) {
  for (const Read& read : std::exchange(*reads_, {})) {
    inside_.holdings.host().give_scratch(read.offset, read.bytes);
    --in_flight_;
    waits_for_room_ = false;
    const bool is_bad = read.reason == MissReason::kCorrupt || read.reason == MissReason::kIoError;
    if (is_bad) inside_.holdings.disk()->remove(read.name, read.reason);
    if (!verify_ || verify_->job != read.job) continue;
    ++(is_bad || read.reason == MissReason::kNone ? verify_->disk_blocks : verify_->gone);
    verify_->bytes += read.bytes;
    if (is_bad) found_bad(KvTier::kDisk, read.name);
  }
  if (sweep_ && sweep_->numbers) {
    json::object all = describe_garbage(sweep_->dry_run, sweep_->orphans, sweep_->corrupt_bytes);
    all["cluster"] = describe_sweep(*sweep_->numbers, *inside_.cluster);
    outbox.send(sweep_->session, kv::AdminAnswer{sweep_->number, {}, json::serialize(all), true});
    sweep_.reset();
  }
  if (flushes_.empty() || !inside_.writes.settled() || inside_.stores.has_work()) return;
  for (const auto& [session, number] : std::exchange(flushes_, {}))
    outbox.send(session, kv::AdminAnswer{number, {}, R"({"settled":true})", true});
}

void Admin::found_bad(KvTier tier, const BlockName& name) {
  ++verify_->bad_blocks;
  if (verify_->bad.size() < kBadListed) verify_->bad.emplace_back(tier, name);
}

std::string Admin::progress() const {
  const VerifyJob& verify = *verify_;
  // What came to the disk since it began is read too, or not.
  const std::uint64_t done = verify.disk_blocks + verify.gone;
  const std::uint64_t left =
      has_read_all() || done >= verify.disk_total ? 0 : verify.disk_total - done;
  const std::uint64_t host_left = verify.host_done || verify.host_blocks >= verify.host_total
                                      ? 0
                                      : verify.host_total - verify.host_blocks;
  json::array bad;
  for (const auto& [tier, name] : verify.bad)
    bad.push_back({{"tier", to_string(tier)},
                   {"key", hex(name.key)},
                   {"group", name.group == KvGroup::kHistory ? "history" : "window"}});
  return json::serialize(json::object{{"host_blocks", verify.host_blocks},
                                      {"host_blocks_left", host_left},
                                      {"disk_blocks", verify.disk_blocks},
                                      {"disk_blocks_left", left},
                                      {"bytes", verify.bytes},
                                      {"gone_meanwhile", verify.gone},
                                      {"bad_blocks", verify.bad_blocks},
                                      {"bad", std::move(bad)}});
}

void Admin::close(kv::SessionId session) {
  if (verify_ && verify_->session == session) verify_.reset();
  std::erase_if(flushes_, [&](const auto& flush) { return flush.first == session; });
  if (sweep_ && sweep_->session == session) sweep_.reset();
}

}  // namespace penstock::service
