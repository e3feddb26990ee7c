// Any text through small tokenizers: decoding gives the text back, in one go and token by token.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/prompt/detokenizer.h"
#include "core/prompt/pretokenizer_scanner.h"
#include "core/prompt/tokenizer.h"
#include "core/prompt/tokenizer_testing.h"
#include "core/prompt/unicode_utf8.h"

namespace {

using penstock::ScannerKind;
using penstock::TokenId;
using penstock::Tokenizer;

std::unique_ptr<Tokenizer> make(std::initializer_list<ScannerKind> kinds) {
  penstock::testing::SmallFile file;
  file.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [)";
  for (const ScannerKind kind : kinds) {
    file.pre_tokenizer +=
        R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": )" +
        penstock::testing::json_string(penstock::pattern_of(kind)) + "}},";
  }
  file.pre_tokenizer += R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
  auto tokenizer = Tokenizer::from_json(file.text());
  ENSURE(tokenizer.has_value());
  return std::move(*tokenizer);
}

void check(const Tokenizer& tokenizer, std::string_view text) {
  std::string repaired;
  penstock::unicode::append_repaired(text, repaired);
  std::vector<TokenId> ids;
  ENSURE(tokenizer.encode(text, ids).has_value());
  for (const TokenId id : ids)
    ENSURE(!tokenizer.is_added(id));
  ENSURE(tokenizer.decode(ids, Tokenizer::Special::kSkip) == repaired);
  std::string streamed;
  penstock::IncrementalDetokenizer detokenizer(tokenizer);
  for (const TokenId id : ids) {
    detokenizer.push(id, streamed);
    ENSURE(penstock::unicode::well_formed_prefix(streamed) == streamed.size());
  }
  detokenizer.finish(streamed);
  ENSURE(streamed == repaired);
  // Ids in an order that no text gave.
  std::string whole;
  for (std::size_t i = ids.size(); i-- > 0;)
    detokenizer.push(ids[i], whole);
  detokenizer.finish(whole);
  std::ranges::reverse(ids);
  ENSURE(tokenizer.decode(ids, Tokenizer::Special::kSkip) == whole);
  ids.clear();
  ENSURE(tokenizer.encode_with_added_tokens(text, ids).has_value());
  ENSURE(tokenizer.decode(ids, Tokenizer::Special::kKeep) == repaired);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<std::unique_ptr<Tokenizer>, 4> tokenizers = {
      make({ScannerKind::kNumberTriples, ScannerKind::kDeepseekCjk, ScannerKind::kDeepseekText}),
      make({ScannerKind::kLlama3}), make({ScannerKind::kNumberEach, ScannerKind::kDeepseekCoder}),
      make({ScannerKind::kGpt2})};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& tokenizer : tokenizers)
    check(*tokenizer, text);
  return 0;
}
