#include "core/prompt/unicode_tables.h"

#include <algorithm>
#include <map>

namespace penstock::unicode {
namespace {

#include "core/prompt/unicode_data.inc"

constexpr char32_t kCodePoints = 0x110000;

// In the order of unicode_data.inc.
constexpr std::string_view kCategoryNames[] = {
    "Cn", "Cc", "Cf", "Co", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No",
    "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"};

// Calls f(first, last, category name) for every run.
template <typename F>
void for_each_run(F f) {
  const std::span<const std::uint32_t> runs = kCategoryRuns;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const char32_t end = i + 1 < runs.size() ? char32_t{runs[i + 1] / 32} : kCodePoints;
    f(char32_t{runs[i] / 32}, end - 1, kCategoryNames[runs[i] % 32]);
  }
}

void append_range(std::vector<CodePointRange>& ranges, CodePointRange range) {
  if (!ranges.empty() && ranges.back().last + 1 == range.first) {
    ranges.back().last = range.last;
  } else {
    ranges.push_back(range);
  }
}

bool contains(std::span<const CodePointRange> ranges, char32_t c) {
  const auto after = std::ranges::upper_bound(ranges, c, {}, &CodePointRange::first);
  return after != ranges.begin() && c <= std::prev(after)->last;
}

std::vector<ClassBits> class_bytes() {
  std::vector<ClassBits> bits(kCodePoints, 0);
  const auto mark = [&bits](const CodePointRange& range, ClassBits bit) {
    for (char32_t c = range.first; c <= range.last; ++c)
      bits[c] |= bit;
  };
  for_each_run([&](char32_t first, char32_t last, std::string_view name) {
    ClassBits bit = 0;
    if (name[0] == 'L') bit = kLetter;
    if (name[0] == 'M') bit = kMark;
    if (name[0] == 'N') bit = kNumber;
    if (name[0] == 'P' || name[0] == 'S') bit = kSign;
    if (bit != 0) mark(CodePointRange{first, last}, bit);
  });
  for (const CodePointRange& range : kWhiteSpaceRanges)
    mark(range, kSpace);
  for (const CodePointRange& range : kNumericRanges)
    mark(range, kNumeric);
  bits[U'\r'] |= kNewline;
  bits[U'\n'] |= kNewline;
  return bits;
}

}  // namespace

ClassTable::ClassTable(std::span<const ClassBits> by_code_point) {
  constexpr std::size_t kBlock = std::size_t{1} << kBlockBits;
  std::map<std::vector<ClassBits>, std::uint32_t> known;
  for (std::size_t start = 0; start < by_code_point.size(); start += kBlock) {
    const auto block = by_code_point.subspan(start, kBlock);
    const auto [it, is_new] = known.try_emplace(std::vector<ClassBits>(block.begin(), block.end()),
                                                static_cast<std::uint32_t>(values_.size()));
    if (is_new) values_.insert(values_.end(), block.begin(), block.end());
    blocks_.push_back(it->second);
  }
}

const ClassTable& classes() {
  static const ClassTable table{class_bytes()};
  return table;
}

const ClassTable& deepseek_classes() {
  static const ClassTable table = [] {
    std::vector<ClassBits> bits = class_bytes();
    for (ClassBits& own : bits)
      own &= static_cast<ClassBits>(~kNumeric);
    constexpr CodePointRange kRuns[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
    for (const CodePointRange& range : kRuns) {
      for (char32_t c = range.first; c <= range.last; ++c) {
        bits[c] = (bits[c] & (kLetter | kMark)) != 0 ? kCjkRun : kCjkRun | kCjkOther;
      }
    }
    return ClassTable(bits);
  }();
  return table;
}

std::vector<CodePointRange> ranges_of(std::string_view name) {
  std::vector<CodePointRange> ranges;
  if (name == "Han") {
    ranges.assign(std::begin(kHanRanges), std::end(kHanRanges));
  } else if (name.size() == 1 || name.size() == 2) {
    for_each_run([&](char32_t first, char32_t last, std::string_view category) {
      if (category.starts_with(name)) append_range(ranges, {first, last});
    });
  }
  return ranges;
}

std::span<const CodePointRange> white_space_ranges() {
  return kWhiteSpaceRanges;
}

std::vector<CodePointRange> word_ranges() {
  // Alphabetic signs that are neither letters nor numbers: circled and squared Latin letters.
  constexpr CodePointRange kAlphabeticSigns[] = {
      {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  constexpr CodePointRange kJoiners = {0x200C, 0x200D};
  std::vector<CodePointRange> ranges(std::begin(kAlphabeticSigns), std::end(kAlphabeticSigns));
  ranges.push_back(kJoiners);
  for_each_run([&](char32_t first, char32_t last, std::string_view name) {
    if (name[0] == 'L' || name[0] == 'M' || name == "Nd" || name == "Nl" || name == "Pc") {
      ranges.push_back({first, last});
    }
  });
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  return ranges;
}

bool is_word(char32_t c) {
  static const std::vector<CodePointRange> ranges = word_ranges();
  return contains(ranges, c);
}

bool is_white_space(char32_t c) {
  return contains(kWhiteSpaceRanges, c);
}

}  // namespace penstock::unicode
