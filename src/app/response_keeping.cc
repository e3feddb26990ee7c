#include "app/response_keeping.h"

#include <string>

#include "app/entropy.h"
#include "io/files/kv_secret.h"
#include "io/responses/sqlite_responses.h"
#include "io/telemetry/log.h"
#include "service/gateway/response_exchanges.h"

namespace penstock {
namespace {

constexpr std::size_t kQueueMax = 4096;

}  // namespace

ResponseKeeping::ResponseKeeping(const TextSeal& seal) : seal_(seal), pool_(1, kQueueMax) {}

Result<std::unique_ptr<ResponseKeeping>> ResponseKeeping::start(const Options& options) {
  TRY_STATUS(make_directories(options.data_dir, 0700));
  TRY(const KvSecret secret, read_or_create_kv_secret(options.kv_secret_file, draw_secret()));
  TRY(const TextSeal seal, TextSeal::make(secret));
  auto keeping = std::unique_ptr<ResponseKeeping>(new ResponseKeeping(seal));
  if (options.responses_retention > Duration::zero()) TRY_STATUS(keeping->open(options));
  return keeping;
}

Status ResponseKeeping::open(const Options& options) {
  auto lock = FileLock::acquire(options.data_dir + "/responses.lock");
  if (!lock && lock.error().code == ErrorCode::kConflict) {
    log_warning("responses are not stored: another gateway does so in {} ({})", options.data_dir,
                lock.error().message);
    return {};
  }
  if (!lock) return std::unexpected(std::move(lock).error());
  lock_.emplace(std::move(*lock));
  SqliteResponsesOptions store;
  store.path = options.data_dir + "/responses.db";
  store.retention_seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options.responses_retention).count();
  store.bytes_max = options.responses_disk_max;
  TRY(store_, open_sqlite_responses(std::move(store)));
  TRY(const std::size_t interrupted,
      store_->end_all(gateway::failed_ending(
          {ErrorCode::kUnavailable,
           "the server was restarted while this response was being made; ask again",
           {},
           {}})));
  if (interrupted > 0) log_warning("{} responses in the background were interrupted", interrupted);
  return {};
}

protocol::Seal ResponseKeeping::seal_for(std::string_view owner) const {
  return {[this, owner = std::string(owner)](std::string_view purpose, std::string_view text) {
            return seal_.seal(purpose, owner, text);
          },
          [this, owner = std::string(owner)](std::string_view purpose, std::string_view sealed) {
            return seal_.open(purpose, owner, sealed);
          }};
}

void ResponseKeeping::expire(std::int64_t now) {
  if (store_ == nullptr) return;
  // When the queue is full the next time does it.
  static_cast<void>(pool_.submit([this, now] {
    if (const Status done = store_->expire(now); !done)
      log_warning("expired responses could not be removed: {}", done.error().message);
  }));
}

}  // namespace penstock
