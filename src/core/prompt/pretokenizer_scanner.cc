#include "core/prompt/pretokenizer_scanner.h"

#include "core/prompt/unicode_tables.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {

using namespace unicode;

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

struct Known {
  ScannerKind kind;
  std::string_view pattern;
};
constexpr Known kKnown[] = {
    {ScannerKind::kNumberEach, R"(\p{N})"},
    {ScannerKind::kNumberTriples, R"(\p{N}{1,3})"},
    {ScannerKind::kDeepseekCjk, "[一-龥\u3040-ゟ゠-ヿ]+"},
    {ScannerKind::kDeepseekText,
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
    {ScannerKind::kLlama3,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {ScannerKind::kQwen,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {ScannerKind::kDeepseekCoder,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

// A character with its class, or the end of the text (size 0, no class).
struct Char {
  ClassBits bits = 0;
  std::uint32_t size = 0;
};

// Walks well-formed text by character class.
class Cursor {
 public:
  Cursor(std::string_view text, const ClassTable& table)
      : end_(text.data() + text.size()), table_(table) {}

  const char* end() const { return end_; }

  Char at(const char* p) const {
    if (p == end_) return {};
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) return {table_.ascii(byte), 1};
    const Decoded decoded = decode(p);
    return {table_.at(decoded.code_point), decoded.size};
  }
  // Skips characters that have any bit of `any`.
  const char* skip(const char* p, ClassBits any) const {
    for (Char c = at(p); (c.bits & any) != 0; c = at(p))
      p += c.size;
    return p;
  }
  // Skips characters that have no bit of `none`.
  const char* skip_none(const char* p, ClassBits none) const {
    for (Char c = at(p); c.size != 0 && (c.bits & none) == 0; c = at(p))
      p += c.size;
    return p;
  }
  const char* skip_newlines(const char* p) const {
    while (p != end_ && (*p == '\r' || *p == '\n'))
      ++p;
    return p;
  }

 private:
  const char* end_;
  const ClassTable& table_;
};

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<std::size_t>(end - begin)};
}

enum class Newlines : std::uint8_t { kOwnPiece, kPlain };

// \s*[\r\n]+|\s+(?!\S)|\s+ at white space: up to its last newline; else all of it at the end of the
// piece; else all but the last character, which belongs to the word behind. `stops` are classes
// that begin another piece, for scanners that join several patterns.
template <Newlines newlines>
const char* white_space(const Cursor& cursor, const char* p, ClassBits stops) {
  const char* last_newline_end = nullptr;
  const char* last_begin = p;
  const char* end = p;
  while (true) {
    const Char c = cursor.at(end);
    if ((c.bits & kSpace) == 0) {
      if (newlines == Newlines::kOwnPiece && last_newline_end != nullptr) return last_newline_end;
      if (c.size == 0 || (c.bits & stops) != 0 || last_begin == p) return end;
      return last_begin;
    }
    last_begin = end;
    end += c.size;
    if ((c.bits & kNewline) != 0) last_newline_end = end;
  }
}

enum class Case : std::uint8_t { kFold, kExact };

// 's|'t|'re|'ve|'m|'ll|'d at an apostrophe; returns `p` when none is there.
template <Case folding>
const char* contraction(const char* p, const char* end) {
  const auto lower = [&](const char* at) {
    if (at >= end) return '\0';
    const bool upper = folding == Case::kFold && *at >= 'A' && *at <= 'Z';
    return upper ? static_cast<char>(*at + ('a' - 'A')) : *at;
  };
  const char first = lower(p + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
  const char second = first == '\0' ? '\0' : lower(p + 2);
  if ((first == 'r' || first == 'v') && second == 'e') return p + 3;
  if (first == 'l' && second == 'l') return p + 3;
  // U+017F, the long s, folds to s.
  if (folding == Case::kFold && between(p + 1, end).starts_with("\xC5\xBF")) return p + 3;
  return p;
}

enum class Words : std::uint8_t { kAnyPrefix, kSpacePrefix };

// The family of Llama-3 and Qwen: contractions, words, numbers, signs, white space. `kStops` as for
// white_space().
template <Words words, int kDigits, ClassBits kStops = 0>
void scan_cl100k(std::string_view text, PieceSink sink) {
  const Cursor cursor(text, classes());
  const char* p = text.data();
  while (p != cursor.end()) {
    const char* const begin = p;
    const Char c = cursor.at(p);
    const char* const behind = p + c.size;
    if (*p == '\'') {
      p = contraction<Case::kFold>(p, cursor.end());
    }
    if (p != begin) {
    } else if ((c.bits & kLetter) != 0) {
      p = cursor.skip(behind, kLetter);
    } else if ((c.bits & kNumber) != 0) {
      p = behind;
      for (int i = 1; i < kDigits; ++i) {
        const Char digit = cursor.at(p);
        if ((digit.bits & kNumber) == 0) break;
        p += digit.size;
      }
    } else {
      const Char next = cursor.at(behind);
      const bool may_lead = words == Words::kAnyPrefix ? (c.bits & kNewline) == 0 : *p == ' ';
      if (may_lead && (next.bits & kLetter) != 0) {
        p = cursor.skip(behind + next.size, kLetter);
      } else if ((c.bits & kSpace) == 0 ||
                 (*p == ' ' && next.size != 0 && (next.bits & (kSpace | kNumber)) == 0)) {
        p = cursor.skip_newlines(cursor.skip_none(behind, kSpace | kLetter | kNumber));
      } else {
        p = white_space<Newlines::kOwnPiece>(cursor, p, kStops);
      }
    }
    sink(between(begin, p));
  }
}

void scan_gpt2(std::string_view text, PieceSink sink) {
  const Cursor cursor(text, classes());
  const char* p = text.data();
  while (p != cursor.end()) {
    const char* const begin = p;
    if (*p == '\'') p = contraction<Case::kExact>(p, cursor.end());
    if (p == begin) {
      const char* word = *p == ' ' ? p + 1 : p;
      const Char c = cursor.at(word);
      if ((c.bits & kLetter) != 0) {
        p = cursor.skip(word, kLetter);
      } else if ((c.bits & kNumber) != 0) {
        p = cursor.skip(word, kNumber);
      } else if (c.size != 0 && (c.bits & kSpace) == 0) {
        p = cursor.skip_none(word, kSpace | kLetter | kNumber);
      } else {
        p = white_space<Newlines::kPlain>(cursor, begin, 0);
      }
    }
    sink(between(begin, p));
  }
}

bool is_ascii_letter(const char* p, const char* end) {
  return p != end && ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z'));
}

// DeepSeek-V3's third pattern; with `joined` also the two before it, whose pieces bound the others.
template <bool joined>
void scan_deepseek(std::string_view text, PieceSink sink) {
  const Cursor cursor(text, joined ? deepseek_classes() : classes());
  constexpr ClassBits kWord = kLetter | kMark;
  constexpr ClassBits kStops = joined ? kNumber | kCjkRun : 0;
  const char* gap = nullptr;  // start of characters that nothing matches
  const char* p = text.data();
  const auto emit = [&](const char* begin) {
    if (gap != nullptr) sink(between(gap, begin));
    gap = nullptr;
    sink(between(begin, p));
  };
  while (p != cursor.end()) {
    const char* const begin = p;
    const Char c = cursor.at(p);
    const char* const behind = p + c.size;
    if ((c.bits & kWord) != 0) {
      p = cursor.skip(behind, kWord);
    } else if (joined && (c.bits & kNumber) != 0) {
      p = behind;
      for (int i = 1; i < 3; ++i) {
        const Char digit = cursor.at(p);
        if ((digit.bits & kNumber) == 0) break;
        p += digit.size;
      }
    } else if (joined && (c.bits & kCjkRun) != 0) {
      ClassBits seen = c.bits;
      p = behind;
      for (Char next = cursor.at(p); (next.bits & kCjkRun) != 0; next = cursor.at(p)) {
        seen |= next.bits;
        p += next.size;
      }
      if ((seen & kCjkOther) != 0) {
        // The third pattern cuts the run again at signs such as the katakana middle dot.
        if (gap != nullptr) sink(between(gap, begin));
        gap = nullptr;
        scan_deepseek<false>(between(begin, p), sink);
        continue;
      }
    } else if ((c.bits & kSign) != 0) {
      if (c.size == 1 && is_ascii_letter(behind, cursor.end())) {
        p = behind;
        while (is_ascii_letter(p, cursor.end()))
          ++p;
      } else {
        p = cursor.skip_newlines(cursor.skip(behind, kSign));
      }
    } else {
      const Char next = cursor.at(behind);
      if ((c.bits & kNewline) == 0 && (next.bits & kWord) != 0) {
        p = cursor.skip(behind + next.size, kWord);
      } else if (*p == ' ' && (next.bits & kSign) != 0) {
        p = cursor.skip_newlines(cursor.skip(behind, kSign));
      } else if ((c.bits & kSpace) != 0) {
        p = white_space<Newlines::kOwnPiece>(cursor, p, kStops);
      } else {
        if (gap == nullptr) gap = p;
        p = behind;
        continue;
      }
    }
    emit(begin);
  }
  if (gap != nullptr) sink(between(gap, p));
}

// Runs of a class of at most `max` characters (0: any number), and what lies between them.
template <ClassBits bits, int max>
void scan_runs(const ClassTable& table, std::string_view text, PieceSink sink) {
  const Cursor cursor(text, table);
  const char* p = text.data();
  while (p != cursor.end()) {
    const char* const begin = p;
    p = cursor.skip_none(p, bits);
    if (p != begin) sink(between(begin, p));
    const char* const run = p;
    if (max == 0) {
      p = cursor.skip(p, bits);
    } else {
      for (int i = 0; i < max; ++i) {
        const Char c = cursor.at(p);
        if ((c.bits & bits) == 0) break;
        p += c.size;
      }
    }
    if (p != run) sink(between(run, p));
  }
}

}  // namespace

std::optional<ScannerKind> known_scanner(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.kind;
  }
  if (pattern == kGpt2Pattern) return ScannerKind::kGpt2;
  return std::nullopt;
}

std::string_view pattern_of(ScannerKind kind) {
  if (kind == ScannerKind::kGpt2) return kGpt2Pattern;
  for (const Known& known : kKnown) {
    if (known.kind == kind) return known.pattern;
  }
  return {};
}

void scan(ScannerKind kind, std::string_view text, PieceSink sink) {
  switch (kind) {
    case ScannerKind::kNumberEach:
      return scan_runs<kNumber, 1>(classes(), text, sink);
    case ScannerKind::kNumberTriples:
      return scan_runs<kNumber, 3>(classes(), text, sink);
    case ScannerKind::kDeepseekCjk:
      return scan_runs<kCjkRun, 0>(deepseek_classes(), text, sink);
    case ScannerKind::kDeepseekText:
      return scan_deepseek<false>(text, sink);
    case ScannerKind::kDeepseekAll:
      return scan_deepseek<true>(text, sink);
    case ScannerKind::kLlama3:
      return scan_cl100k<Words::kAnyPrefix, 3>(text, sink);
    case ScannerKind::kQwen:
      return scan_cl100k<Words::kAnyPrefix, 1>(text, sink);
    case ScannerKind::kDeepseekCoder:
      return scan_cl100k<Words::kSpacePrefix, 1>(text, sink);
    case ScannerKind::kNumberedCoder:
      return scan_cl100k<Words::kSpacePrefix, 1, kNumber>(text, sink);
    case ScannerKind::kGpt2:
      return scan_gpt2(text, sink);
  }
}

}  // namespace penstock
