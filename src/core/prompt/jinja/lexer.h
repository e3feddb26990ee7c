// tokenize(): a template's source as tokens, white space already controlled.
//
// Blocks take the newline behind them and the blanks before them on their line (trim_blocks and
// lstrip_blocks), unless the tag says otherwise; one newline at the end of the source goes. So
// transformers sets Jinja up for chat templates.
//
// Errors: Failure with its line. Concurrency: pure. Source: the documentation of Jinja 3.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/jinja/value.h"

namespace penstock::jinja {

inline constexpr std::size_t kSourceBytesMax = std::size_t{1} << 20;

struct Token {
  enum class Kind : std::uint8_t {
    kData,  // text outside of tags
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // of the source
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// The last token is kEnd.
Fallible<std::vector<Token>> tokenize(std::string_view source);

}  // namespace penstock::jinja
