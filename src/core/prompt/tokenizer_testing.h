// Small tokenizer files for tests and fuzzers: 256 bytes, some merges, some added tokens.
//
// Concurrency: pure functions.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock::testing {

// The character that stands for a byte in vocabularies.
inline std::string byte_character(unsigned char byte) {
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool is_itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
    const char32_t c = is_itself ? char32_t{b} : next++;
    if (b == byte) {
      std::string text;
      append_utf8(c, text);
      return text;
    }
  }
  return {};
}

inline std::string in_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes)
    text += byte_character(static_cast<unsigned char>(c));
  return text;
}

inline std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

// Parts of a tokenizer.json; defaults make a valid file.
struct SmallFile {
  std::vector<std::pair<std::string, std::string>> merges = {
      {"h", "e"},           {"l", "l"}, {"he", "ll"}, {"hell", "o"},
      {" ", "hello"},       {" ", " "}, {"  ", "  "}, {"\xE4", "\xB8"},
      {"\xE4\xB8", "\xAD"}, {"w", "o"}, {"1", "2"},   {"12", "3"},
  };
  std::string added = R"({"id": 1000, "content": "<s>", "special": true, "normalized": false},
      {"id": 1001, "content": "<tool>", "special": false, "normalized": false})";
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string model_extra;  // ", \"key\": value"
  std::string root_extra;
  bool ignore_merges = false;

  std::string text() const {
    std::map<std::string, int> vocabulary;
    std::string entries;
    const auto add = [&](const std::string& token) {
      const int id = static_cast<int>(vocabulary.size());
      if (!vocabulary.try_emplace(token, id).second) return;
      entries += (id == 0 ? "" : ",") + json_string(token) + ":" + std::to_string(id);
    };
    for (unsigned byte = 0; byte < 256; ++byte) {
      add(byte_character(static_cast<unsigned char>(byte)));
    }
    std::string rules;
    for (const auto& [left, right] : merges) {
      add(in_alphabet(left + right));
      rules += (rules.empty() ? "" : ",") + std::string("[") + json_string(in_alphabet(left)) +
               "," + json_string(in_alphabet(right)) + "]";
    }
    return "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [" +
           added + "], \"normalizer\": " + normalizer + ", \"pre_tokenizer\": " + pre_tokenizer +
           ", \"post_processor\": null, \"decoder\": " + decoder +
           ", \"model\": {\"type\": \"BPE\", \"dropout\": null, \"ignore_merges\": " +
           (ignore_merges ? "true" : "false") + model_extra + ", \"vocab\": {" + entries +
           "}, \"merges\": [" + rules + "]}" + root_extra + "}";
  }
};

}  // namespace penstock::testing
