// What the KV daemon's answers look like to people: tables instead of JSON.
// Errors: JSON of an unknown shape is printed as it is. Concurrency: pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {

// `stat` and `ls` are the answers of those commands; the second one gives tenants their names.
std::string kv_stat_text(std::string_view stat, std::string_view ls);
std::string kv_list_text(std::string_view ls);
std::string kv_explain_text(std::string_view explain);
std::string kv_verify_text(std::string_view verify);
std::string kv_gc_text(std::string_view gc);
// Blocks read and all there are, from a part of verify's answer.
std::pair<std::size_t, std::size_t> kv_verify_progress(std::string_view part);

}  // namespace penstock
