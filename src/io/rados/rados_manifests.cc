#if PENSTOCK_RADOS
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/hash.h"
#include "io/rados/rados_block_store.h"

namespace penstock::rados {
namespace {

constexpr std::size_t kShards = 16;  // of a manifest: as many placement groups share its writes
constexpr std::size_t kPage = 1000;  // keys of the list of manifests read at a time
constexpr Duration kListedFor = std::chrono::minutes(1);
constexpr const char* kAllManifests = "manifests/all";
constexpr const char* kLock = "lock";

std::string key_of(ManifestId id) {
  return fmt::format("{}/{}", id.ttl_class, id.slice);
}

std::string shard_object(ManifestId id, std::size_t shard) {
  return fmt::format("manifests/{}/{:02}", key_of(id), shard);
}

std::string key_of(const StoreName& name) {
  return (name.pool == StorePool::kExtents ? "e/" : "s/") + name.name;
}

std::size_t shard_of(std::string_view key) {
  return checksum64(key) % kShards;
}

// Both parts of "NUMBER/REST".
bool split(std::string_view text, std::uint64_t& number, std::string_view& rest) {
  const std::size_t slash = text.find('/');
  if (slash == text.npos) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + slash, number);
  rest = text.substr(slash + 1);
  return error == std::errc{} && end == text.data() + slash;
}

std::optional<ManifestId> manifest_of(std::string_view key) {
  std::uint64_t ttl_class = 0;
  ManifestId id;
  std::string_view slice;
  if (!split(key, ttl_class, slice) || ttl_class > 255) return std::nullopt;
  const auto [end, error] = std::from_chars(slice.data(), slice.data() + slice.size(), id.slice);
  if (error != std::errc{} || end != slice.data() + slice.size()) return std::nullopt;
  id.ttl_class = static_cast<TtlClass>(ttl_class);
  return id;
}

// Calls `done` with the worst code when `count` codes have come.
RadosCalls::Then all_of(std::size_t count, RadosCalls::Then done) {
  struct Codes {
    std::size_t left;
    int worst = 0;
    RadosCalls::Then done;
  };
  const auto codes = std::make_shared<Codes>(count, 0, std::move(done));
  return [codes](int code) {
    if (code < 0) codes->worst = code;
    if (--codes->left == 0) codes->done(codes->worst);
  };
}

std::uint64_t number(const boost::json::object& in, std::string_view key) {
  const boost::json::value* value = in.if_contains(key);
  if (value == nullptr || !value->is_number()) return 0;
  return static_cast<std::uint64_t>(std::max(0.0, value->to_number<double>()));
}

// What `ceph df detail` says of both pools. Room is the extents pool's: it takes nearly all.
StoreUse read_use(std::string_view text, const RadosStoreOptions& options) {
  StoreUse use;
  boost::system::error_code error;
  const boost::json::value document = boost::json::parse(text, error);
  const auto* root = error ? nullptr : document.if_object();
  const auto* pools = root == nullptr ? nullptr : root->if_contains("pools");
  if (pools == nullptr || !pools->is_array()) return use;
  for (const boost::json::value& item : pools->get_array()) {
    const auto* pool = item.if_object();
    const auto* name = pool == nullptr ? nullptr : pool->if_contains("name");
    const auto* stats = pool == nullptr ? nullptr : pool->if_contains("stats");
    if (name == nullptr || !name->is_string() || stats == nullptr || !stats->is_object()) continue;
    const bool extents = name->get_string() == options.extents_pool;
    if (!extents && name->get_string() != options.small_pool) continue;
    const boost::json::object& of = stats->get_object();
    const std::uint64_t used = number(of, "bytes_used");
    use.bytes_used += used;
    use.objects += number(of, "objects");
    if (!extents) continue;
    const std::uint64_t stored = number(of, "stored"), quota = number(of, "quota_bytes");
    std::uint64_t room = number(of, "max_avail");
    if (quota != 0) room = std::min(room, quota > stored ? quota - stored : 0);
    // `used` and the total are with redundancy, the room is not.
    const double redundancy =
        stored > 0 ? static_cast<double>(used) / static_cast<double>(stored) : 1.2;
    use.bytes_total += static_cast<std::uint64_t>(static_cast<double>(room) * redundancy);
  }
  use.bytes_total += use.bytes_used;
  return use;
}

}  // namespace

void RadosBlockStore::set_keys(const std::string& object, const std::vector<std::string>& keys,
                               Instant deadline, Then then) {
  std::vector<const char*> names, values(keys.size(), "");
  std::vector<std::size_t> lengths, value_lengths(keys.size(), 0);
  for (const std::string& key : keys) {
    names.push_back(key.data());
    lengths.push_back(key.size());
  }
  WriteOp op(library_);
  library_.write_op_omap_set2(op.get(), names.data(), values.data(), lengths.data(),
                              value_lengths.data(), keys.size());
  write(StorePool::kSmall, object, op, 0, deadline, std::move(then));
}

// The list of all manifests knows one before its first name: what a crash leaves is an empty
// manifest there, never names that no sweep will find.
void RadosBlockStore::add_to_manifest(ManifestId id, std::vector<StoreName> names, Instant deadline,
                                      Done done) {
  const auto listed = listed_.find(id);
  const bool known = listed != listed_.end() && now_ - listed->second < kListedFor;
  if (!link_.up() || names.empty()) {
    calls_.answer_soon(link_.up() ? 0 : -ENOTCONN,
                       [this, done = std::move(done)](int code) { done(reason_of(code)); });
  } else if (known) {
    add_names(id, names, deadline, std::move(done));
  } else {
    set_keys(kAllManifests, {key_of(id)}, deadline,
             [this, id, names = std::move(names), deadline, done = std::move(done)](int code) {
               if (code < 0) return done(reason_of(code));
               listed_[id] = now_;
               add_names(id, names, deadline, done);
             });
  }
}

// All into one shard, another each time: one operation, however many they are.
void RadosBlockStore::add_names(ManifestId id, const std::vector<StoreName>& names,
                                Instant deadline, Done done) {
  std::vector<std::string> keys;
  for (const StoreName& name : names)
    keys.push_back(key_of(name));
  set_keys(shard_object(id, shard_of(keys.front())), keys, deadline,
           [this, done = std::move(done)](int code) { done(reason_of(code)); });
}

void RadosBlockStore::read_keys(const std::string& object, const std::string& after,
                                std::size_t keys_max, Instant deadline,
                                std::function<void(int, std::vector<std::string>, bool)> then) {
  const auto page = std::make_shared<OmapKeys>(library_);
  const rados_ioctx_t pool = link_.pool(StorePool::kSmall);
  calls_.start(pool,
               {deadline, page, 0,
                [page, then = std::move(then)](int code) {
                  std::vector<std::string> keys;
                  for (std::string key; code >= 0 && page->next(key);)
                    keys.push_back(key);
                  then(code, std::move(keys), page->more != 0);
                }},
               [&](rados_completion_t completion) {
                 const rados_read_op_t op = library_.create_read_op();
                 library_.read_op_omap_get_keys2(op, after.c_str(), keys_max, &page->keys,
                                                 &page->more, &page->code);
                 const int code =
                     library_.aio_read_op_operate(op, pool, completion, object.c_str(), 0);
                 library_.release_read_op(op);
                 return code;
               });
}

// `from` is "SHARD/KEY": where in which shard the page before ended.
void RadosBlockStore::read_manifest(ManifestId id, std::string from, std::size_t names_max,
                                    Instant deadline,
                                    std::function<void(MissReason, ManifestPage)> done) {
  std::uint64_t shard = 0;
  std::string_view after;
  if (!link_.up() || (!from.empty() && (!split(from, shard, after) || shard >= kShards))) {
    return calls_.answer_soon(
        link_.up() ? -EINVAL : -ENOTCONN,
        [this, done = std::move(done)](int code) { done(reason_of(code), {}); });
  }
  read_shard(id, shard, std::string(after), names_max, deadline, std::move(done));
}

void RadosBlockStore::read_shard(ManifestId id, std::size_t shard, const std::string& after,
                                 std::size_t names_max, Instant deadline,
                                 std::function<void(MissReason, ManifestPage)> done) {
  read_keys(shard_object(id, shard), after, names_max, deadline,
            [=, this](int code, const std::vector<std::string>& keys, bool more) {
              if (code < 0 && code != -ENOENT) return done(reason_of(code), {});
              ManifestPage page;
              for (const std::string& key : keys) {
                if (key.starts_with("e/"))
                  page.names.push_back({StorePool::kExtents, key.substr(2)});
                if (key.starts_with("s/")) page.names.push_back({StorePool::kSmall, key.substr(2)});
              }
              const bool last = shard + 1 == kShards;
              if (!more && keys.empty() && !last)
                return read_shard(id, shard + 1, "", names_max, deadline, done);
              if (more && !keys.empty()) {
                page.next = fmt::format("{}/{}", shard, keys.back());
              } else if (!last) {
                page.next = fmt::format("{}/", shard + 1);
              }
              done(reason_of(0), std::move(page));
            });
}

void RadosBlockStore::list_manifests(
    Instant deadline, std::function<void(MissReason, std::vector<ManifestId>)> done) {
  if (!link_.up()) {
    return calls_.answer_soon(
        -ENOTCONN, [this, done = std::move(done)](int code) { done(reason_of(code), {}); });
  }
  list_more({}, "", deadline, std::move(done));
}

void RadosBlockStore::list_more(std::vector<ManifestId> so_far, const std::string& after,
                                Instant deadline,
                                std::function<void(MissReason, std::vector<ManifestId>)> done) {
  read_keys(kAllManifests, after, kPage, deadline,
            [this, so_far = std::move(so_far), deadline, done = std::move(done)](
                int code, const std::vector<std::string>& keys, bool more) mutable {
              if (code < 0 && code != -ENOENT) return done(reason_of(code), {});
              for (const std::string& key : keys)
                if (const auto id = manifest_of(key)) so_far.push_back(*id);
              if (more && !keys.empty())
                return list_more(std::move(so_far), keys.back(), deadline, std::move(done));
              done(reason_of(0), std::move(so_far));
            });
}

// Its shards first: what a crash leaves is found again through the list.
void RadosBlockStore::drop_manifest(ManifestId id, Instant deadline, Done done) {
  auto ended = [this, done = std::move(done)](int code) {
    done(reason_of(code == -ENOENT ? 0 : code));
  };
  if (!link_.up()) return calls_.answer_soon(-ENOTCONN, std::move(ended));
  listed_.erase(id);
  const Then one = all_of(kShards, [this, id, deadline, ended](int worst) {
    if (worst < 0) return ended(worst);
    const std::string key = key_of(id);
    const char* name = key.data();
    const std::size_t length = key.size();
    WriteOp op(library_);
    library_.write_op_omap_rm_keys2(op.get(), &name, &length, 1);
    write(StorePool::kSmall, kAllManifests, op, 0, deadline, ended);
  });
  for (std::size_t shard = 0; shard < kShards; ++shard) {
    WriteOp op(library_);
    op.remove();
    write(StorePool::kSmall, shard_object(id, shard), op, 0, deadline,
          [one](int code) { one(code == -ENOENT ? 0 : code); });
  }
}

void RadosBlockStore::run(Instant deadline, std::shared_ptr<void> held, std::function<int()> job,
                          Then then) {
  if (!link_.up()) return calls_.answer_soon(-ENOTCONN, std::move(then));
  const std::uint64_t call = calls_.expect({deadline, std::move(held), 0, std::move(then)});
  link_.run(
      [mailbox = calls_.mailbox(), call, job = std::move(job)] { mailbox->put({call, job()}); });
}

void RadosBlockStore::take_lease(std::string what, std::string owner, Duration duration,
                                 Instant deadline, std::function<void(MissReason, bool)> done) {
  auto job = [this, object = "leases/" + what, owner = std::move(owner), duration] {
    const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(duration);
    timeval length{microseconds.count() / 1'000'000, microseconds.count() % 1'000'000};
    return library_.lock_exclusive(link_.pool(StorePool::kSmall), object.c_str(), kLock,
                                   owner.c_str(), "", &length, LIBRADOS_LOCK_FLAG_MAY_RENEW);
  };
  run(deadline, nullptr, std::move(job), [this, done = std::move(done)](int code) {
    if (code == -EBUSY) return done(MissReason::kNone, false);
    done(reason_of(code), code >= 0);
  });
}

void RadosBlockStore::give_back_lease(std::string what, std::string owner, Instant deadline,
                                      Done done) {
  auto job = [this, object = "leases/" + what, owner = std::move(owner)] {
    return library_.unlock(link_.pool(StorePool::kSmall), object.c_str(), kLock, owner.c_str());
  };
  run(deadline, nullptr, std::move(job), [this, done = std::move(done)](int code) {
    done(reason_of(code == -ENOENT ? 0 : code));  // it was not ours, or has run out
  });
}

void RadosBlockStore::use(Instant deadline, std::function<void(MissReason, StoreUse)> done) {
  const auto text = std::make_shared<std::string>();
  auto job = [this, text] {
    const char* command = R"({"prefix": "df", "detail": "detail", "format": "json"})";
    char *answer = nullptr, *words = nullptr;
    std::size_t length = 0, words_length = 0;
    const int code = library_.mon_command(link_.cluster(), &command, 1, "", 0, &answer, &length,
                                          &words, &words_length);
    if (code >= 0 && answer != nullptr) text->assign(answer, length);
    library_.buffer_free(answer);
    library_.buffer_free(words);
    return code;
  };
  run(deadline, text, std::move(job), [this, text, done = std::move(done)](int code) {
    if (code < 0) return done(reason_of(code), {});
    StoreUse use = read_use(*text, options_);
    use.full = !full_.empty();
    done(reason_of(0), use);
  });
}

}  // namespace penstock::rados
#endif
