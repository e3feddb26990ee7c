// Text cases: files of `input`, a line ----, `expected`; several in a file are parted by a line
// ====.
//
// Lines that start with # before the input are the case's title. A runner is a function from input
// to actual text. With UPDATE=1 in the environment the expected parts are rewritten instead of
// compared; review the difference. Paths are relative to the repository root, where tests run.
// Errors: a missing or malformed file fails the test.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

namespace penstock::test {

struct TextCase {
  std::string title;  // comment lines, with their #
  std::string input;  // without the last newline
  std::string expected;
};

inline std::vector<std::string> split_at_lines(std::string_view text, std::string_view mark) {
  std::vector<std::string> parts(1);
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line == mark) {
      parts.emplace_back();
    } else {
      parts.back().append(line).push_back('\n');
    }
  }
  for (auto& part : parts) {
    while (part.ends_with('\n'))
      part.pop_back();
  }
  return parts;
}

inline TextCase parse_text_case(std::string_view text) {
  TextCase out;
  while (text.starts_with('#') || text.starts_with('\n')) {
    const auto line = text.substr(0, text.find('\n'));
    if (!line.empty()) out.title.append(line).push_back('\n');
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  auto parts = split_at_lines(text, "----");
  out.input = parts[0];
  if (parts.size() > 1) out.expected = parts[1];
  return out;
}

// Runs every case of tests/cases/<file>.
inline void run_cases(const std::string& file,
                      const std::function<std::string(const std::string&)>& run) {
  const auto path = std::filesystem::path("tests/cases") / file;
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), "can't read " << path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  in.close();
  const char* update = std::getenv("UPDATE");
  const bool rewrite = update != nullptr && std::string_view(update) == "1";
  std::string rewritten;
  for (const auto& block : split_at_lines(text, "====")) {
    const auto c = parse_text_case(block);
    auto actual = run(c.input);
    while (actual.ends_with('\n'))
      actual.pop_back();
    if (!rewritten.empty()) rewritten += "\n====\n";
    rewritten += c.title + c.input + "\n----\n" + actual + "\n";
    if (rewrite) continue;
    INFO(path.string(), ": ", c.title, c.input);
    CHECK(actual == c.expected);
  }
  if (rewrite) std::ofstream(path, std::ios::binary) << rewritten;
}

}  // namespace penstock::test
