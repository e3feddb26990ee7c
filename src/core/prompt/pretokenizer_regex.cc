#include "core/prompt/pretokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "base/check.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {
namespace {

constexpr std::size_t kPatternBytesMax = 16384;
constexpr std::size_t kJitStackMin = std::size_t{64} << 10;
constexpr std::size_t kJitStackMax = std::size_t{8} << 20;
// Steps of backtracking at one start position; real patterns need a handful.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKib = 65536;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct CompileContextFree {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct RegexScratch::State {
  std::unique_ptr<pcre2_match_context, MatchContextFree> context;
  std::unique_ptr<pcre2_match_data, MatchDataFree> data;
  std::unique_ptr<pcre2_jit_stack, JitStackFree> stack;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {
  state_->context.reset(pcre2_match_context_create(nullptr));
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  ENSURE(state_->context && state_->data);
  pcre2_set_match_limit(state_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(state_->context.get(), kHeapLimitKib);
  // Without a stack of its own PCRE2 uses 32 KiB of the thread's: slower to give up, still right.
  state_->stack.reset(pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr));
  if (state_->stack) {
    pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
  }
}
RegexScratch::~RegexScratch() = default;

struct Regex::State {
  std::unique_ptr<pcre2_code, CodeFree> code;
};

Regex::Regex(std::unique_ptr<State> state) : state_(std::move(state)) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a regular expression of {} bytes is over the limit of {}",
                            pattern.size(), kPatternBytesMax));
  }
  if (unicode::well_formed_prefix(pattern) != pattern.size()) {
    return fail(ErrorCode::kInvalidArgument, "the regular expression is not valid UTF-8");
  }
  TRY(const std::string translated, translate_regex(pattern));
  const std::unique_ptr<pcre2_compile_context, CompileContextFree> context(
      pcre2_compile_context_create(nullptr));
  ENSURE(context);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto state = std::make_unique<State>();
  state->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (!state->code) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the regular expression does not compile: {}", message_of(error)));
  }
  // Where there is no JIT the interpreter gives the same matches.
  (void)pcre2_jit_compile(state->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(state));
}

Result<std::optional<Match>> Regex::next(std::string_view text, std::size_t from,
                                         std::size_t previous_end, RegexScratch& scratch) const {
  while (from <= text.size()) {
    const int rc = pcre2_match(state_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                               text.size(), from, PCRE2_NO_UTF_CHECK, scratch.state_->data.get(),
                               scratch.state_->context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (rc < 0) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the tokenizer's regular expression gave up on this text: {}",
                              message_of(rc)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.state_->data.get());
    const Match match{offsets[0], offsets[1]};
    // \K and look-behinds could start a match before `from`; such patterns are refused by dialect.
    if (match.begin != match.end || match.end != previous_end) return match;
    if (match.end == text.size()) return std::nullopt;
    from = match.end + unicode::decode(text.data() + match.end).size;
  }
  return std::nullopt;
}

}  // namespace penstock
