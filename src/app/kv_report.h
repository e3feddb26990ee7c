// What the KV daemon's answers look like to people: tables instead of JSON.
// Errors: JSON of an unknown shape is printed as it is. Concurrency: pure.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// `stat` and `ls` are the answers of those commands; the second one gives tenants their names.
std::string kv_stat_text(std::string_view stat, std::string_view ls);
std::string kv_list_text(std::string_view ls);
std::string kv_explain_text(std::string_view explain);
std::string kv_verify_text(std::string_view verify);
std::string kv_gc_text(std::string_view gc);

}  // namespace penstock
