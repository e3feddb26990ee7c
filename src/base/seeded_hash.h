// A quick hash with a seed, for tables whose keys strangers choose.
//
// Who doesn't know the seed can't aim at a place. Two texts may still have one hash, so whoever
// keeps something by it compares the text itself.
//
// Concurrency: pure. Source: XXH3 with a seed, by libxxhash.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

std::uint64_t seeded_hash(std::string_view bytes, std::uint64_t seed);

}  // namespace penstock
