// Describe: the daemon's numbers and contents as JSON, for `kv stat`, `ls` and `explain`.
//
// Names are 32 hexadecimal digits, tenants 16 (checksums of their names); sizes are bytes, times
// seconds. Reasons and tiers have the names of domain/kv.h.
//
// Concurrency: pure. Source: issue 3 part 6.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "service/kvd/inside.h"

namespace penstock::service {

std::string hex(const BlockKey& key);
std::optional<BlockKey> parse_key(std::string_view digits);

boost::json::object describe_stat(const Inside& inside, const SessionNumbers& sessions,
                                  TierNow now);
// kAll: with what export needs, layouts of roots and parents, classes and tenants of blocks.
enum class Details : std::uint8_t { kFew, kAll };
// Every root with what memory holds of it, by key; at most `limit` after `after`. The disk knows no
// roots, so of it there is the sum.
boost::json::object describe_roots(const Inside& inside, const std::optional<BlockKey>& after,
                                   std::size_t limit, Details details);
// Blocks of one root in memory, from slot `first` on.
boost::json::object describe_blocks(const Inside& inside, const BlockKey& root, std::size_t first,
                                    std::size_t limit, Details details, Instant now);
// What the acquires of a request got, and why the rest is missing.
boost::json::array describe_acquires(const Inside& inside, const std::string& request);

}  // namespace penstock::service
