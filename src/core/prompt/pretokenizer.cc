#include "core/prompt/pretokenizer.h"

#include <functional>
#include <optional>
#include <utility>

#include "core/prompt/pretokenizer_regex.h"
#include "core/prompt/pretokenizer_scanner.h"
#include "core/prompt/unicode_tables.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {

struct PreTokenizer::Stage {
  enum class Kind : std::uint8_t { kScanner, kRegex, kLiteral, kNumeric, kPrefixSpace };
  Kind kind = Kind::kScanner;
  ScannerKind scanner = ScannerKind::kGpt2;
  std::optional<Regex> regex;
  std::string literal;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};

namespace {

// Turns matches and the gaps between them into pieces, as a split behaviour says.
class Splitter {
 public:
  Splitter(std::string_view text, SplitBehavior behavior, bool invert, PieceSink sink)
      : text_(text), behavior_(behavior), invert_(invert), sink_(sink) {}

  void match(std::size_t begin, std::size_t end) {
    if (begin > covered_) part(covered_, begin, false);
    part(begin, end, true);
    covered_ = end;
  }
  void finish() {
    if (covered_ < text_.size()) part(covered_, text_.size(), false);
    flush();
  }

 private:
  void part(std::size_t begin, std::size_t end, bool is_match) {
    if (invert_) is_match = !is_match;
    bool joins = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins = is_match && !previous_is_match_;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = !is_match && previous_is_match_;
        break;
      case SplitBehavior::kContiguous:
        joins = is_match == previous_is_match_;
        break;
    }
    if (!joins || !open_) {
      flush();
      begin_ = begin;
      open_ = behavior_ != SplitBehavior::kRemoved || !is_match;
    }
    end_ = end;
    previous_is_match_ = is_match;
  }
  void flush() {
    if (open_ && end_ > begin_) sink_(text_.substr(begin_, end_ - begin_));
    open_ = false;
  }

  std::string_view text_;
  SplitBehavior behavior_;
  bool invert_;
  PieceSink sink_;
  std::size_t covered_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool open_ = false;
  bool previous_is_match_ = false;
};

Status split_by_regex(const Regex& regex, std::string_view text, RegexScratch& scratch,
                      Splitter& splitter) {
  std::size_t from = 0;
  std::size_t previous_end = std::string_view::npos;
  while (true) {
    TRY(const std::optional<Match> match, regex.next(text, from, previous_end, scratch));
    if (!match) break;
    splitter.match(match->begin, match->end);
    from = previous_end = match->end;
  }
  splitter.finish();
  return {};
}

void split_by_literal(std::string_view literal, std::string_view text, Splitter& splitter) {
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    splitter.match(at, at + literal.size());
  }
  splitter.finish();
}

// Every numeric character is a match of its own.
void split_by_numeric(std::string_view text, Splitter& splitter) {
  const unicode::ClassTable& table = unicode::classes();
  for (std::size_t i = 0; i < text.size();) {
    const unicode::Decoded c = unicode::decode(text.data() + i);
    if ((table.at(c.code_point) & unicode::kNumeric) != 0) splitter.match(i, i + c.size);
    i += c.size;
  }
  splitter.finish();
}

}  // namespace

PreTokenizer::PreTokenizer(Engine engine) : engine_(engine) {}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

Status PreTokenizer::add_split(const Split& split) {
  if (split.pattern.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the pattern of a Split must not be empty");
  }
  Stage stage;
  stage.behavior = split.behavior;
  stage.invert = split.invert;
  const bool isolates = split.behavior == SplitBehavior::kIsolated;
  const auto scanner = known_scanner(split.pattern);
  if (!split.is_regex) {
    stage.kind = Stage::Kind::kLiteral;
    stage.literal = split.pattern;
  } else if (engine_ == Engine::kFastest && isolates && scanner) {
    stage.kind = Stage::Kind::kScanner;
    stage.scanner = *scanner;
  } else {
    stage.kind = Stage::Kind::kRegex;
    TRY(stage.regex, Regex::compile(split.pattern));
    needs_scratch_ = true;
  }
  stages_.push_back(std::move(stage));
  return {};
}

void PreTokenizer::add_digits(bool individual) {
  Stage stage;
  stage.kind = Stage::Kind::kNumeric;
  stage.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  stages_.push_back(std::move(stage));
}

Status PreTokenizer::add_byte_level(bool add_prefix_space, bool use_regex) {
  if (add_prefix_space) {
    Stage stage;
    stage.kind = Stage::Kind::kPrefixSpace;
    stages_.push_back(std::move(stage));
  }
  if (use_regex) {
    return add_split({std::string(kGpt2Pattern), true, SplitBehavior::kIsolated, false});
  }
  return {};
}

void PreTokenizer::finish() {
  const auto is = [this](std::size_t i, ScannerKind kind) {
    return stages_[i].kind == Stage::Kind::kScanner && stages_[i].scanner == kind;
  };
  if (stages_.size() >= 3 && is(0, ScannerKind::kNumberTriples) &&
      is(1, ScannerKind::kDeepseekCjk) && is(2, ScannerKind::kDeepseekText)) {
    stages_.erase(stages_.begin(), stages_.begin() + 2);
    stages_.front().scanner = ScannerKind::kDeepseekAll;
  } else if (stages_.size() >= 2 && is(0, ScannerKind::kNumberEach) &&
             is(1, ScannerKind::kDeepseekCoder)) {
    stages_.erase(stages_.begin());
    stages_.front().scanner = ScannerKind::kNumberedCoder;
  }
}

std::unique_ptr<RegexScratch> PreTokenizer::make_scratch() const {
  return needs_scratch_ ? std::make_unique<RegexScratch>() : nullptr;
}

Status PreTokenizer::split(std::string_view text, RegexScratch* scratch, PieceSink sink) const {
  return text.empty() ? Status() : run(0, text, scratch, sink);
}

Status PreTokenizer::run(std::size_t index, std::string_view piece, RegexScratch* scratch,
                         PieceSink sink) const {
  if (index == stages_.size()) {
    sink(piece);
    return {};
  }
  const Stage& stage = stages_[index];
  Status status;
  auto deeper = [&](std::string_view part) {
    if (status) status = run(index + 1, part, scratch, sink);
  };
  // The last stage feeds the sink directly.
  const PieceSink next = index + 1 == stages_.size() ? sink : PieceSink(deeper);
  Splitter splitter(piece, stage.behavior, stage.invert, next);
  switch (stage.kind) {
    case Stage::Kind::kScanner:
      scan(stage.scanner, piece, next);
      break;
    case Stage::Kind::kRegex:
      TRY_STATUS(split_by_regex(*stage.regex, piece, *scratch, splitter));
      break;
    case Stage::Kind::kLiteral:
      split_by_literal(stage.literal, piece, splitter);
      break;
    case Stage::Kind::kNumeric:
      split_by_numeric(piece, splitter);
      break;
    case Stage::Kind::kPrefixSpace:
      if (piece.starts_with(' ')) {
        next(piece);
      } else {
        next(" " + std::string(piece));
      }
      break;
  }
  return status;
}

}  // namespace penstock
