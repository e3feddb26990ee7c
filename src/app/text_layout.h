// Plain text in columns, for terminals of 80 columns and more. Concurrency: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Breaks at spaces so that no line is longer than `width` (long words stay whole); lines after the
// first are indented.
std::string wrap(std::string_view text, std::size_t width, std::size_t indent);

// Rows of cells in aligned columns, two spaces between; cells of `right` columns are right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<bool>& right = {});

// Columns that UTF-8 text takes on a terminal, counting one a character.
std::size_t display_width(std::string_view text);

}  // namespace penstock
