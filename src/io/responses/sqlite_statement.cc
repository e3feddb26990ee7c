#include "io/responses/sqlite_statement.h"

#include <fmt/format.h>

namespace penstock {

std::unexpected<Error> sqlite_error(sqlite3* database, std::string_view doing) {
  const int code = sqlite3_errcode(database);
  if (code == SQLITE_FULL) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{}: the store of responses is full (responses.disk_max)", doing));
  }
  const bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
  return fail(damaged ? ErrorCode::kDataLoss : ErrorCode::kIo,
              fmt::format("{}: {}", doing, sqlite3_errmsg(database)));
}

Result<SqliteStatement> SqliteStatement::prepare(sqlite3* database, std::string_view sql) {
  SqliteStatement out;
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(database, sql.data(), static_cast<int>(sql.size()),
                         SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
    return sqlite_error(database, "preparing a statement");
  }
  out.statement_.reset(statement);
  return out;
}

void SqliteStatement::bind_one(int index, std::string_view text) {
  // A null pointer would bind NULL.
  sqlite3_bind_text64(statement_.get(), index, text.empty() ? "" : text.data(), text.size(),
                      SQLITE_STATIC, SQLITE_UTF8);
}

Result<bool> SqliteStatement::step() {
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      sqlite3_reset(statement_.get());
      return false;
    default: {
      auto error = sqlite_error(sqlite3_db_handle(statement_.get()), "the store of responses");
      sqlite3_reset(statement_.get());
      return error;
    }
  }
}

Status SqliteStatement::run() {
  while (true) {
    TRY(const bool row, step());
    if (!row) return {};
  }
}

std::string SqliteStatement::text(int column) const {
  const auto* bytes = sqlite3_column_text(statement_.get(), column);
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  return bytes == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(bytes), size);
}

}  // namespace penstock
