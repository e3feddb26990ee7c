// Cuts normalised text into the pieces that are encoded one by one.
//
// A pipeline of stages, each cutting the pieces of the one before, as the file's Sequence says:
// Split by a regular expression or a string with its behaviour, Digits, ByteLevel with its prefix
// space and GPT-2 pattern. Pieces stream through; nothing is collected. A look-ahead never sees
// beyond the piece it is in, as in the reference.
//
// Invariants: no piece is empty.
// Errors: add_* kInvalidArgument or kUnsupported for a pattern that can't be compiled or means
// something else in the reference's dialect; split kUnsupported when PCRE2 gives up.
// Concurrency: immutable once built; scratch memory belongs to the caller.
// Source: docs of huggingface/tokenizers, pre_tokenizers.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace penstock {

// A callable that takes a piece; refers to it without owning it.
class PieceSink {
 public:
  template <typename F>
    requires(!std::same_as<std::remove_const_t<F>, PieceSink>)
  explicit PieceSink(F& f)
      : context_(&f),
        call_([](void* context, std::string_view piece) { (*static_cast<F*>(context))(piece); }) {}
  void operator()(std::string_view piece) const { call_(context_, piece); }

 private:
  void* context_;
  void (*call_)(void*, std::string_view);
};

enum class SplitBehavior : std::uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

class RegexScratch;

class PreTokenizer {
 public:
  struct Split {
    std::string pattern;
    bool is_regex = true;  // else a literal string
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  enum class Engine : std::uint8_t { kFastest, kRegexOnly };  // the latter for tests

  explicit PreTokenizer(Engine engine = Engine::kFastest);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  [[nodiscard]] Status add_split(const Split& split);
  void add_digits(bool individual);
  [[nodiscard]] Status add_byte_level(bool add_prefix_space, bool use_regex);
  // Ends building: joins stages that one scanner can do.
  void finish();

  // Memory that split() reuses; one per thread. Empty when no stage needs any.
  std::unique_ptr<RegexScratch> make_scratch() const;
  // Hands the pieces of well-formed text to the sink.
  [[nodiscard]] Status split(std::string_view text, RegexScratch* scratch, PieceSink sink) const;

 private:
  struct Stage;
  Status run(std::size_t stage, std::string_view piece, RegexScratch* scratch,
             PieceSink sink) const;
  Status add_matcher(const Split& split);

  Engine engine_;
  std::vector<Stage> stages_;
  bool needs_scratch_ = false;
};

}  // namespace penstock
