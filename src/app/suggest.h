// "Did you mean ...": the known word nearest to a mistyped one.
// Concurrency: pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace penstock {

// Edits (insert, delete, replace, swap neighbours) between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the fewest edits, the first of equals; empty when none is near (more than a
// third of the longer word, but two edits are always near enough for words of four letters or
// more).
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// "; did you mean X?" or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view prefix = "");

}  // namespace penstock
