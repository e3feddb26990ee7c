// What the routes beside POST /v1/responses answer: pages of items, deletions, counts, compactions.
//
// Errors: item_page() kInvalidArgument naming the parameter. Concurrency: pure. Source:
// facts/api.md 3.3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "core/protocol/seal.h"
#include "domain/usage.h"

namespace penstock::protocol {

// The value of `name` in the query part of a URL, still encoded; nothing when it is not there.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

// One page of `items`, a JSON array in order of time, as the query asks: limit (1 to 100, 20 if not
// given), order (asc or desc, desc if not given), after (an item's id).
Result<std::string> item_page(std::string_view items, std::string_view query);
// starting_after of a resumed stream, -1 if not given.
Result<std::int64_t> starting_after(std::string_view query);

// The item with this id among a JSON array of items.
std::optional<std::string> find_item(std::string_view items, std::string_view id);

std::string deleted_response(std::string_view id);
std::string input_tokens_object(std::uint64_t tokens);

// {"object":"response.compaction",...} of a conversation given as JSON arrays of items: what was
// said, by whom, sealed into one item. Reasoning, calls and their outputs are left out.
struct Compaction {
  std::string name;  // ids are "resp_<name>" and "cmp_<name>"
  std::int64_t created = 0;
  Usage usage;
};
std::string compaction_object(std::string_view items, const Compaction& compaction,
                              const Seal& seal);

}  // namespace penstock::protocol
