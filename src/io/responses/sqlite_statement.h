// SqliteStatement: one prepared statement, reset when its use ends. Internal to io/responses.
// Concurrency: with its connection.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

struct SqliteClose {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using SqliteHandle = std::unique_ptr<sqlite3, SqliteClose>;

// The connection's last error as ours: full, damaged, or a failed read or write.
std::unexpected<Error> sqlite_error(sqlite3* database, std::string_view doing);

class SqliteStatement {
 public:
  static Result<SqliteStatement> prepare(sqlite3* database, std::string_view sql);

  // Binds the values to ?1, ?2, ... in order; texts must live until the statement was run.
  template <typename... Values>
  SqliteStatement& bind(const Values&... values) {
    sqlite3_reset(statement_.get());
    int index = 0;
    (bind_one(++index, values), ...);
    return *this;
  }
  // True when there is a row, false at the end.
  Result<bool> step();
  // Runs it to its end.
  Status run();
  std::string text(int column) const;
  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  void bind_one(int index, std::string_view text);
  void bind_one(int index, const std::string& text) { bind_one(index, std::string_view(text)); }
  void bind_one(int index, std::int64_t value) {
    sqlite3_bind_int64(statement_.get(), index, value);
  }

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

}  // namespace penstock
