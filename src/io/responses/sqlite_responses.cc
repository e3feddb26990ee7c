#include "io/responses/sqlite_responses.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/responses/sqlite_statement.h"

namespace penstock {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kPageBytes = 4096;
constexpr const char* kSchema = R"(
  CREATE TABLE IF NOT EXISTS responses(
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous_id TEXT NOT NULL, created INTEGER NOT NULL,
    background INTEGER NOT NULL, running INTEGER NOT NULL,
    input TEXT NOT NULL, output TEXT NOT NULL, body TEXT NOT NULL);
  CREATE INDEX IF NOT EXISTS responses_by_age ON responses(created, id);
  CREATE TABLE IF NOT EXISTS events(
    id TEXT NOT NULL, sequence INTEGER NOT NULL, event TEXT NOT NULL,
    PRIMARY KEY(id, sequence)) WITHOUT ROWID;
)";
constexpr std::string_view kColumns =
    "id, owner, previous_id, created, background, running, input, output, body";

class SqliteResponses final : public ResponseStore {
 public:
  SqliteResponses(SqliteHandle database, SqliteResponsesOptions options)
      : database_(std::move(database)), options_(std::move(options)) {}

  Status prepare();

  Status put(const StoredResponse& response) override;
  Result<std::optional<StoredResponse>> find(std::string_view owner, std::string_view id) override;
  Result<std::vector<StoredResponse>> chain(std::string_view owner, std::string_view id) override;
  Result<bool> erase(std::string_view owner, std::string_view id) override;
  Result<bool> append(std::string_view id, const std::vector<StoredEvent>& events) override;
  Result<bool> finish(const StoredResponse& response,
                      const std::vector<StoredEvent>& events) override;
  Result<std::optional<StoredResponse>> end(std::string_view owner, std::string_view id,
                                            const MakeEnding& make) override;
  Result<std::size_t> end_all(const MakeEnding& make) override;
  Result<std::vector<StoredEvent>> events(std::string_view id, std::int64_t after,
                                          std::size_t count_max) override;
  Status expire(std::int64_t now) override;

 private:
  Status execute(const char* sql);
  // Runs `work` in a transaction; what it did is undone when it fails.
  template <typename Work>
  auto transact(const Work& work) -> decltype(work());
  Result<bool> is_running(std::string_view id);
  Status insert_events(std::string_view id, const std::vector<StoredEvent>& events);
  Status make_room();
  Status remove(std::string_view id);
  Status end_one(const StoredResponse& response, const MakeEnding& make);
  static StoredResponse read(const SqliteStatement& row);

  SqliteHandle database_;
  SqliteResponsesOptions options_;
  SqliteStatement insert_, find_, erase_, erase_events_, running_, all_running_, insert_event_,
      finish_, last_event_, select_events_, oldest_, expired_, used_;
};

StoredResponse SqliteResponses::read(const SqliteStatement& row) {
  StoredResponse out;
  out.id = row.text(0);
  out.owner = row.text(1);
  out.previous_id = row.text(2);
  out.created = row.integer(3);
  out.background = row.integer(4) != 0;
  out.running = row.integer(5) != 0;
  out.input = row.text(6);
  out.output = row.text(7);
  out.body = row.text(8);
  return out;
}

Status SqliteResponses::execute(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return sqlite_error(database_.get(), "the store of responses");
}

Status SqliteResponses::prepare() {
  sqlite3_busy_timeout(database_.get(), 5000);
  const auto pragmas = fmt::format(
      "PRAGMA page_size={}; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
      "PRAGMA secure_delete=ON; PRAGMA max_page_count={};",
      kPageBytes, std::max<std::int64_t>(64, options_.bytes_max.value / kPageBytes));
  TRY_STATUS(execute(pragmas.c_str()));
  TRY(auto version, SqliteStatement::prepare(database_.get(), "PRAGMA user_version"));
  TRY(const bool versioned, version.step());
  const std::int64_t found = versioned ? version.integer(0) : 0;
  if (found != 0 && found != kVersion) {
    return fail(ErrorCode::kDataLoss,
                fmt::format("{} has the version {}, this program writes {}; move the file away",
                            options_.path, found, kVersion));
  }
  version.bind();
  TRY_STATUS(execute(kSchema));
  TRY_STATUS(execute(fmt::format("PRAGMA user_version={}", kVersion).c_str()));
  const struct {
    SqliteStatement& statement;
    std::string sql;
  } statements[] = {
      {insert_,
       fmt::format("INSERT INTO responses({}) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)", kColumns)},
      {find_, fmt::format("SELECT {} FROM responses WHERE id=?1 AND owner=?2", kColumns)},
      {erase_, "DELETE FROM responses WHERE id=?1"},
      {erase_events_, "DELETE FROM events WHERE id=?1"},
      {running_, "SELECT 1 FROM responses WHERE id=?1 AND running=1"},
      {all_running_, fmt::format("SELECT {} FROM responses WHERE running=1 ORDER BY id", kColumns)},
      {insert_event_, "INSERT INTO events(id, sequence, event) VALUES(?1,?2,?3)"},
      {finish_, "UPDATE responses SET running=0, output=?2, body=?3 WHERE id=?1"},
      {last_event_, "SELECT coalesce(max(sequence), -1) FROM events WHERE id=?1"},
      {select_events_,
       "SELECT sequence, event FROM events WHERE id=?1 AND sequence>?2 ORDER BY sequence LIMIT ?3"},
      {oldest_, "SELECT id FROM responses WHERE running=0 ORDER BY created, id LIMIT 1"},
      {expired_, "SELECT id FROM responses WHERE running=0 AND created<=?1 LIMIT 100"},
      {used_,
       "SELECT (SELECT page_count FROM pragma_page_count) - "
       "(SELECT freelist_count FROM pragma_freelist_count)"}};
  for (const auto& [statement, sql] : statements) {
    TRY(statement, SqliteStatement::prepare(database_.get(), sql));
  }
  return {};
}

template <typename Work>
auto SqliteResponses::transact(const Work& work) -> decltype(work()) {
  TRY_STATUS(execute("BEGIN IMMEDIATE"));
  auto done = work();
  if (done) {
    const Status committed = execute("COMMIT");
    if (committed) return done;
    done = std::unexpected(committed.error());
  }
  static_cast<void>(execute("ROLLBACK"));
  return done;
}

Status SqliteResponses::remove(std::string_view id) {
  TRY_STATUS(erase_events_.bind(id).run());
  return erase_.bind(id).run();
}

// Keeps a tenth free, so that the next one finds room without deleting first each time.
Status SqliteResponses::make_room() {
  const std::int64_t pages_max = options_.bytes_max.value / kPageBytes / 10 * 9;
  while (true) {
    TRY(const bool known, used_.bind().step());
    const std::int64_t used = known ? used_.integer(0) : 0;
    used_.bind();
    if (used <= pages_max) return {};
    TRY(const bool found, oldest_.bind().step());
    if (!found) return {};
    const std::string id = oldest_.text(0);
    oldest_.bind();
    TRY_STATUS(remove(id));
  }
}

Status SqliteResponses::put(const StoredResponse& r) {
  return transact([&]() -> Status {
    TRY_STATUS(make_room());
    return insert_
        .bind(r.id, r.owner, r.previous_id, r.created, std::int64_t{r.background},
              std::int64_t{r.running}, r.input, r.output, r.body)
        .run();
  });
}

Result<std::optional<StoredResponse>> SqliteResponses::find(std::string_view owner,
                                                            std::string_view id) {
  TRY(const bool found, find_.bind(id, owner).step());
  if (!found) return std::nullopt;
  StoredResponse out = read(find_);
  find_.bind();
  return out;
}

Result<std::vector<StoredResponse>> SqliteResponses::chain(std::string_view owner,
                                                           std::string_view id) {
  std::vector<StoredResponse> out;
  std::string next(id);
  while (!next.empty()) {
    TRY(auto found, find(owner, next));
    if (!found || out.size() == options_.chain_max) return std::vector<StoredResponse>();
    next = found->previous_id;
    out.push_back(std::move(*found));
  }
  std::ranges::reverse(out);
  return out;
}

Result<bool> SqliteResponses::erase(std::string_view owner, std::string_view id) {
  return transact([&]() -> Result<bool> {
    TRY(const auto found, find(owner, id));
    if (!found) return false;
    TRY_STATUS(remove(id));
    return true;
  });
}

Result<bool> SqliteResponses::is_running(std::string_view id) {
  TRY(const bool running, running_.bind(id).step());
  running_.bind();
  return running;
}

Status SqliteResponses::insert_events(std::string_view id, const std::vector<StoredEvent>& events) {
  for (const StoredEvent& event : events) {
    TRY_STATUS(insert_event_.bind(id, static_cast<std::int64_t>(event.sequence), event.text).run());
  }
  return {};
}

Result<bool> SqliteResponses::append(std::string_view id, const std::vector<StoredEvent>& events) {
  return transact([&]() -> Result<bool> {
    TRY(const bool running, is_running(id));
    if (!running) return false;
    TRY_STATUS(make_room());
    TRY_STATUS(insert_events(id, events));
    return true;
  });
}

Result<bool> SqliteResponses::finish(const StoredResponse& r,
                                     const std::vector<StoredEvent>& events) {
  return transact([&]() -> Result<bool> {
    TRY(const bool running, is_running(r.id));
    if (!running) return false;
    TRY_STATUS(make_room());
    TRY_STATUS(insert_events(r.id, events));
    TRY_STATUS(finish_.bind(r.id, r.output, r.body).run());
    return true;
  });
}

Status SqliteResponses::end_one(const StoredResponse& response, const MakeEnding& make) {
  TRY_STATUS(last_event_.bind(response.id).step());
  const std::int64_t last = last_event_.integer(0);
  last_event_.bind();
  const ResponseEnding ending = make(response, static_cast<std::uint64_t>(last + 1));
  TRY_STATUS(insert_events(response.id, ending.events));
  return finish_.bind(response.id, response.output, ending.body).run();
}

Result<std::optional<StoredResponse>> SqliteResponses::end(std::string_view owner,
                                                           std::string_view id,
                                                           const MakeEnding& make) {
  return transact([&]() -> Result<std::optional<StoredResponse>> {
    TRY(auto found, find(owner, id));
    if (!found || !found->running) return found;
    TRY_STATUS(end_one(*found, make));
    return find(owner, id);
  });
}

Result<std::size_t> SqliteResponses::end_all(const MakeEnding& make) {
  return transact([&]() -> Result<std::size_t> {
    std::vector<StoredResponse> all;
    all_running_.bind();
    while (true) {
      TRY(const bool row, all_running_.step());
      if (!row) break;
      all.push_back(read(all_running_));
    }
    for (const StoredResponse& response : all)
      TRY_STATUS(end_one(response, make));
    return all.size();
  });
}

Result<std::vector<StoredEvent>> SqliteResponses::events(std::string_view id, std::int64_t after,
                                                         std::size_t count_max) {
  std::vector<StoredEvent> out;
  select_events_.bind(id, after, static_cast<std::int64_t>(count_max));
  while (true) {
    TRY(const bool row, select_events_.step());
    if (!row) return out;
    out.push_back({static_cast<std::uint64_t>(select_events_.integer(0)), select_events_.text(1)});
  }
}

Status SqliteResponses::expire(std::int64_t now) {
  while (true) {
    std::vector<std::string> ids;
    expired_.bind(now - options_.retention_seconds);
    while (true) {
      TRY(const bool row, expired_.step());
      if (!row) break;
      ids.push_back(expired_.text(0));
    }
    if (ids.empty()) return {};
    TRY_STATUS(transact([&]() -> Status {
      for (const auto& id : ids)
        TRY_STATUS(remove(id));
      return {};
    }));
  }
}

}  // namespace

Result<std::unique_ptr<ResponseStore>> open_sqlite_responses(SqliteResponsesOptions options) {
  const std::string path = options.path;
  const auto failed = [&](Error error) { return std::unexpected(std::move(error).within(path)); };
  // Made here, because SQLite would let others read it.
  const int file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return fail(ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(errno)));
  ::close(file);
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  SqliteHandle database(raw);
  if (code != SQLITE_OK) return failed(sqlite_error(raw, "opening").error());
  auto store = std::make_unique<SqliteResponses>(std::move(database), std::move(options));
  if (auto ready = store->prepare(); !ready) return failed(std::move(ready).error());
  return store;
}

}  // namespace penstock
