#if PENSTOCK_RADOS
#include "io/rados/rados_block_store.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace penstock::rados {
namespace {

constexpr std::uint64_t kTimeoutsInTrouble = 16;  // in a row: worth saying

}  // namespace

RadosBlockStore::RadosBlockStore(const RadosLibrary& library, const RadosStoreOptions& options)
    : library_(library), options_(options), link_(library, options), calls_(library) {}

MissReason RadosBlockStore::reason_of(int code) {
  if (code != -ETIMEDOUT) timeouts_in_a_row_ = 0;
  switch (code < 0 ? -code : 0) {
    case 0:
      trouble_.clear();
      return MissReason::kNone;
    case ENOENT:
      return MissReason::kNeverStored;
    case ENOTCONN:
      return MissReason::kTierOff;
    case EBUSY:  // more in flight than the limit allows
    case ETIMEDOUT:
      ++timeouts_in_a_row_;
      return MissReason::kTooSlow;
    case ENOSPC:
    case EDQUOT:
      full_ = fmt::format(
          "full: {}. Add OSDs, raise the pool's quota or lower the store's "
          "capacity target",
          code == -EDQUOT ? "a pool's quota is used up" : "the OSDs are");
      return MissReason::kEvictedShare;
    case EACCES:
    case EPERM:
      trouble_ = fmt::format(
          "{} may not do this: its capabilities are too small "
          "(docs/cluster-ceph.md)",
          options_.user);
      return MissReason::kTierOff;
    case ESHUTDOWN:
      trouble_ =
          "the cluster has put this client on its blocklist: see 'ceph osd blocklist ls', "
          "remove it there and restart";
      return MissReason::kTierOff;
    default:
      ++stats_.io_errors;
      trouble_ = fmt::format("an operation failed: {}", std::strerror(-code));
      return MissReason::kIoError;
  }
}

void RadosBlockStore::write(StorePool pool, const std::string& object, const WriteOp& op,
                            std::size_t bytes, Instant deadline, Then then) {
  calls_.start(link_.pool(pool), {deadline, nullptr, bytes, std::move(then)},
               [&](rados_completion_t completion) {
                 return library_.aio_write_op_operate(op.get(), link_.pool(pool), completion,
                                                      object.c_str(), nullptr,
                                                      LIBRADOS_OPERATION_FULL_TRY);
               });
}

void RadosBlockStore::put(StorePut put) {
  ++stats_.puts;
  const std::size_t bytes = put.payload.bytes.size();
  int refused = 0;
  if (!link_.up()) refused = -ENOTCONN;
  if (calls_.bytes() + bytes > options_.inflight_bytes_max) refused = -EBUSY;
  if (refused != 0) {
    calls_.answer_soon(refused,
                       [this, done = std::move(put.done)](int code) { done(reason_of(code)); });
    return;
  }
  put_step(std::make_shared<StorePut>(std::move(put)), PutStep::kCreate);
}

// Most names are new. One that is there gets the bytes again (they may be damaged), and the slice
// unless the noted one is later.
void RadosBlockStore::put_step(std::shared_ptr<StorePut> put, PutStep step) {
  WriteOp op(library_);
  if (step == PutStep::kCreate) op.create();
  if (step == PutStep::kReplace) op.require_slice(LIBRADOS_CMPXATTR_OP_GTE, put->slice);
  op.write(put->payload.bytes);
  if (step != PutStep::kReplaceBytes) op.note_slice(put->slice);
  const StoreName name = put->name;
  const std::size_t bytes = put->payload.bytes.size();
  write(name.pool, name.name, op, bytes, put->deadline, [this, put, step, bytes](int code) {
    if (step == PutStep::kCreate && code == -EEXIST) return put_step(put, PutStep::kReplace);
    if (step == PutStep::kReplace && code == -ECANCELED)
      return put_step(put, PutStep::kReplaceBytes);
    const MissReason reason = reason_of(code);
    if (code >= 0) stats_.put_bytes += bytes;
    if (code >= 0) full_.clear();
    put->done(reason);
  });
}

void RadosBlockStore::get(StoreGet get) {
  ++stats_.gets;
  auto done = [this, done = std::move(get.done)](int code) {
    const std::size_t bytes = code > 0 ? static_cast<std::size_t>(code) : 0;
    stats_.get_bytes += bytes;
    done(reason_of(code), bytes);
  };
  if (!link_.up()) return calls_.answer_soon(-ENOTCONN, std::move(done));
  const std::span<std::byte> to = get.destination.bytes;
  if (calls_.bytes() + to.size() > options_.inflight_bytes_max)
    return calls_.answer_soon(-EBUSY, std::move(done));
  const rados_ioctx_t pool = link_.pool(get.name.pool);
  calls_.start(pool, {get.deadline, get.destination.owner, to.size(), std::move(done)},
               [&](rados_completion_t completion) {
                 return library_.aio_read(pool, get.name.name.c_str(), completion,
                                          reinterpret_cast<char*>(to.data()), to.size(),
                                          get.offset);
               });
}

void RadosBlockStore::look_up(StoreLookUp look_up) {
  stats_.look_ups += look_up.names.size();
  if (!link_.up() || look_up.names.empty()) {
    return calls_.answer_soon(
        link_.up() ? 0 : -ENOTCONN,
        [this, done = std::move(look_up.done)](int code) { done(reason_of(code), {}); });
  }
  // All at once; the answer goes out with the last of them.
  struct Batch {
    std::vector<StoreFound> found;
    std::size_t left = 0;
    int worst = 0;
    decltype(StoreLookUp::done) done;
  };
  const auto batch = std::make_shared<Batch>();
  batch->found.resize(look_up.names.size());
  batch->left = look_up.names.size();
  batch->done = std::move(look_up.done);
  for (std::size_t i = 0; i < look_up.names.size(); ++i) {
    const StoreName& name = look_up.names[i];
    const auto facts = std::make_shared<ObjectFacts>(library_);
    const rados_ioctx_t pool = link_.pool(name.pool);
    auto then = [this, batch, facts, i](int code) {
      if (code >= 0) batch->found[i] = {facts->bytes, facts->slice()};
      if (code < 0 && code != -ENOENT) batch->worst = code;
      if (--batch->left > 0) return;
      batch->done(reason_of(batch->worst), std::move(batch->found));
    };
    calls_.start(
        pool, {look_up.deadline, facts, 0, std::move(then)}, [&](rados_completion_t completion) {
          const rados_read_op_t op = library_.create_read_op();
          library_.read_op_stat(op, &facts->bytes, &facts->time, &facts->stat_code);
          library_.read_op_getxattrs(op, &facts->attributes, &facts->attributes_code);
          const int code = library_.aio_read_op_operate(op, pool, completion, name.name.c_str(), 0);
          library_.release_read_op(op);
          return code;
        });
  }
}

void RadosBlockStore::touch(StoreName name, TimeSlice slice, Instant deadline, Done done) {
  auto then = [this, done = std::move(done)](int code) {
    done(reason_of(code == -ECANCELED ? 0 : code));  // a later slice is noted
  };
  if (!link_.up()) return calls_.answer_soon(-ENOTCONN, std::move(then));
  WriteOp op(library_);
  op.require_exists();
  op.require_slice(LIBRADOS_CMPXATTR_OP_GT, slice);
  op.note_slice(slice);
  write(name.pool, name.name, op, 0, deadline, std::move(then));
}

void RadosBlockStore::remove(StoreName name, TimeSlice slice_max, Instant deadline,
                             std::function<void(MissReason, bool, std::uint64_t)> done) {
  ++stats_.removes;
  if (!link_.up()) {
    return calls_.answer_soon(
        -ENOTCONN, [this, done = std::move(done)](int code) { done(reason_of(code), false, 0); });
  }
  // A write returns nothing, so the size comes from a look-up that goes ahead of it: RADOS does one
  // client's operations on one object in order.
  const auto bytes = std::make_shared<std::uint64_t>(0);
  look_up({{name}, deadline, [bytes](MissReason, const std::vector<StoreFound>& found) {
             if (!found.empty()) *bytes = found[0].bytes;
           }});
  --stats_.look_ups;
  WriteOp op(library_);
  op.require_exists();
  op.require_slice(LIBRADOS_CMPXATTR_OP_GTE, slice_max);
  op.remove();
  write(name.pool, name.name, op, 0, deadline, [this, bytes, done = std::move(done)](int code) {
    if (code == -ECANCELED) return done(MissReason::kNone, false, 0);
    done(reason_of(code), code >= 0, code >= 0 ? *bytes : 0);
  });
}

void RadosBlockStore::poll(Instant now) {
  now_ = now;
  calls_.poll(now);
}

StoreStats RadosBlockStore::stats() const {
  StoreStats stats = stats_;
  stats.timeouts = calls_.timeouts();
  stats.stranded_bytes = calls_.stranded_bytes();
  stats.state = link_.state();
  if (stats.state == "ok" && !trouble_.empty()) stats.state = trouble_;
  if (stats.state == "ok" && !full_.empty()) stats.state = full_;
  if (stats.state == "ok" && timeouts_in_a_row_ >= kTimeoutsInTrouble)
    stats.state = fmt::format(
        "the last {} operations took too long. Look at 'ceph -s' for "
        "inactive placement groups and slow OSDs",
        timeouts_in_a_row_);
  return stats;
}

}  // namespace penstock::rados
#endif
