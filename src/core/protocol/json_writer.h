// JSON writing by appending to a string: no tree, no exceptions, never invalid UTF-8.
//
// Invariants: whatever bytes come in, what goes out is valid JSON in valid UTF-8 on one line:
// control characters are escaped, ill-formed sequences become U+FFFD (one per maximal subpart, as
// the Unicode standard recommends and browsers do). Errors: none. Concurrency: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::protocol {

// Offset of the first byte that is not well-formed UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view bytes);

// Appends "..." with everything escaped that JSON asks for.
void append_json_string(std::string& out, std::string_view text);
void append_json_number(std::string& out, std::int64_t value);
void append_json_number(std::string& out, std::uint64_t value);
// Shortest text that reads back as the same float; non-finite values become -9999.0, the value that
// logprobs use for "very unlikely".
void append_json_logprob(std::string& out, float value);
// Appends JSON text without the whitespace between its tokens, so it stands on one line.
// Precondition: `json` is valid.
void append_compact_json(std::string& out, std::string_view json);
// Appends `text` with ill-formed UTF-8 replaced, without quotes or escapes.
void append_valid_utf8(std::string& out, std::string_view text);

}  // namespace penstock::protocol
