// translate_regex: see pretokenizer_regex.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/utf8.h"
#include "core/prompt/pretokenizer_regex.h"
#include "core/prompt/unicode_tables.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {
namespace {

using unicode::CodePointRange;

// What this PCRE2 takes for \p{name}: its Unicode version is not the reference's. 10 ms.
std::vector<CodePointRange> library_ranges(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{{}}}+", name);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error,
                    &offset, nullptr),
      pcre2_code_free);
  if (!code) return {};
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  std::string everything;
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : c + 1) {
    append_utf8(c, everything);
  }
  std::vector<CodePointRange> ranges;
  PCRE2_SIZE from = 0;
  while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(everything.data()), everything.size(),
                     from, PCRE2_NO_UTF_CHECK, data.get(), nullptr) > 0) {
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
    std::size_t last = offsets[1] - 1;
    while ((static_cast<unsigned char>(everything[last]) & 0xC0) == 0x80)
      --last;
    ranges.push_back({unicode::decode(everything.data() + offsets[0]).code_point,
                      unicode::decode(everything.data() + last).code_point});
    from = offsets[1];
  }
  return ranges;
}

// What is in `a` and not in `b`; both ascending and disjoint.
std::vector<CodePointRange> difference(std::span<const CodePointRange> a,
                                       std::span<const CodePointRange> b) {
  std::vector<CodePointRange> rest;
  std::size_t j = 0;
  for (const CodePointRange& range : a) {
    char32_t next = range.first;
    while (j < b.size() && b[j].last < next)
      ++j;
    for (std::size_t k = j; k < b.size() && b[k].first <= range.last; ++k) {
      if (b[k].first > next) rest.push_back({next, b[k].first - 1});
      next = b[k].last + 1;
    }
    if (next <= range.last) rest.push_back({next, range.last});
  }
  return rest;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        TRY_STATUS(escape(false));
      } else if (c == '[') {
        TRY_STATUS(char_class());
      } else if (c == '(') {
        TRY_STATUS(group());
      } else if (c == '^' || c == '$') {
        return refuse("an anchor");
      } else if (c == '{') {
        TRY_STATUS(interval());
      } else {
        out_.push_back(c);
        ++position_;
      }
    }
    return std::move(out_);
  }

 private:
  std::unexpected<Error> refuse(std::string_view what) const {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{} at offset {} of the regular expression is not supported", what, position_));
  }
  bool looking_at(std::string_view text) const {
    return pattern_.substr(position_).starts_with(text);
  }

  // Writes ranges as the inside of a class.
  void put_ranges(std::span<const CodePointRange> ranges) {
    for (const CodePointRange& range : ranges) {
      fmt::format_to(std::back_inserter(out_), "\\x{{{:x}}}-\\x{{{:x}}}",
                     static_cast<std::uint32_t>(range.first),
                     static_cast<std::uint32_t>(range.last));
    }
  }

  // A class by its ranges, inside or outside brackets.
  Status put_class(std::vector<CodePointRange> ranges, bool negated, bool in_class) {
    if (in_class && negated) ranges = complement(ranges);
    if (!in_class) out_ += negated ? "[^" : "[";
    put_ranges(ranges);
    if (!in_class) out_ += "]";
    return {};
  }

  static std::vector<CodePointRange> complement(std::span<const CodePointRange> ranges) {
    std::vector<CodePointRange> rest;
    char32_t next = 0;
    const auto add = [&rest](char32_t first, char32_t last) {
      // PCRE2 refuses surrogates as ends of ranges; UTF-8 can't hold them anyway.
      if (first <= 0xD7FF && last >= 0xE000) {
        rest.push_back({first, 0xD7FF});
        rest.push_back({0xE000, last});
      } else if (first < 0xD800 || last > 0xDFFF) {
        rest.push_back({first, last});
      }
    };
    for (const CodePointRange& range : ranges) {
      if (range.first > next) add(next, range.first - 1);
      next = range.last + 1;
    }
    if (next <= 0x10FFFF) add(next, 0x10FFFF);
    return rest;
  }

  Status escape(bool in_class) {
    if (position_ + 1 >= pattern_.size()) return refuse("a backslash at the end");
    const char c = pattern_[position_ + 1];
    const auto is_negated = [c] { return c >= 'A' && c <= 'Z'; };
    switch (c) {
      case 's':
      case 'S': {
        const auto spaces = unicode::white_space_ranges();
        position_ += 2;
        return put_class({spaces.begin(), spaces.end()}, is_negated(), in_class);
      }
      case 'd':
      case 'D':
        position_ += 2;
        return put_property("Nd", unicode::ranges_of("Nd"), is_negated(), in_class);
      case 'p':
      case 'P':
        return property(in_class);
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'v':
        // Oniguruma's \v is the vertical tab, PCRE2's is any vertical space.
        out_ += c == 'v' ? std::string_view("\\x0b") : pattern_.substr(position_, 2);
        position_ += 2;
        return {};
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      return refuse(fmt::format("the escape \\{}", c));
    }
    // A sign, or the first byte of a character, stands for itself.
    if ((static_cast<unsigned char>(c) & 0x80) == 0) out_.push_back('\\');
    out_.push_back(c);
    position_ += 2;
    return {};
  }

  // \p{Name}, \P{Name}, \p{^Name}
  Status property(bool in_class) {
    bool negated = pattern_[position_ + 1] == 'P';
    const std::size_t close = pattern_.find('}', position_);
    if (pattern_.substr(position_ + 2, 1) != "{" || close == std::string_view::npos) {
      return refuse("a property without braces");
    }
    std::string_view name = pattern_.substr(position_ + 3, close - position_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::vector<CodePointRange> ranges = unicode::ranges_of(name);
    if (ranges.empty() || name == "C" || name == "Cn") {
      return refuse(fmt::format("the property \\p{{{}}}", name));
    }
    position_ = close + 1;
    return put_property(name, ranges, negated, in_class);
  }

  // PCRE2's own property and what it lacks: hundreds of explicit ranges would match slowly.
  Status put_property(std::string_view name, const std::vector<CodePointRange>& ranges,
                      bool negated, bool in_class) {
    if (in_class && negated) return put_class(ranges, negated, in_class);
    const auto [known, is_new] = library_.try_emplace(std::string(name));
    if (is_new) known->second = library_ranges(name);
    const std::vector<CodePointRange>& library = known->second;
    if (library.empty() || !difference(library, ranges).empty()) {
      return put_class(ranges, negated, in_class);
    }
    if (!in_class) out_ += negated ? "[^" : "[";
    fmt::format_to(std::back_inserter(out_), "\\p{{{}}}", name);
    put_ranges(difference(ranges, library));
    if (!in_class) out_ += "]";
    return {};
  }

  Status char_class() {
    out_.push_back('[');
    ++position_;
    if (looking_at("^")) {
      out_.push_back('^');
      ++position_;
    }
    bool is_first = true;
    for (; position_ < pattern_.size() && (is_first || pattern_[position_] != ']');
         is_first = false) {
      const char c = pattern_[position_];
      if (c == ']') return refuse("an empty class");
      if (c == '[') return refuse("a class within a class");
      if (looking_at("&&")) return refuse("an intersection of classes");
      if (c == '\\') {
        TRY_STATUS(escape(true));
      } else {
        out_.push_back(c);
        ++position_;
      }
    }
    if (position_ == pattern_.size()) return refuse("an unclosed class");
    out_.push_back(']');
    ++position_;
    return {};
  }

  Status group() {
    static constexpr std::string_view kOpenings[] = {
        "(?:", "(?i:", "(?i)", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    std::string_view opening = "(";
    if (looking_at("(?") || looking_at("(*")) {
      opening = {};
      for (const std::string_view known : kOpenings) {
        if (looking_at(known)) opening = known;
      }
      if (opening.empty()) return refuse("this kind of group");
    }
    out_ += opening;
    position_ += opening.size();
    return {};
  }

  // {n}, {n,}, {n,m}: a sign behind them means something else in the other dialect.
  Status interval() {
    std::size_t end = position_ + 1;
    const std::size_t first = end;
    while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0) {
      ++end;
    }
    const bool has_first = end > first;
    if (end < pattern_.size() && pattern_[end] == ',') ++end;
    while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0) {
      ++end;
    }
    if (!has_first || end >= pattern_.size() || pattern_[end] != '}') {
      return refuse("an unescaped brace");
    }
    ++end;
    const std::string_view behind = pattern_.substr(end, 1);
    if (behind == "+" || behind == "?" || behind == "*") {
      return refuse("a second quantifier behind an interval");
    }
    out_ += pattern_.substr(position_, end - position_);
    position_ = end;
    return {};
  }

  std::string_view pattern_;
  std::size_t position_ = 0;
  std::string out_;
  std::map<std::string, std::vector<CodePointRange>> library_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace penstock
