#include "service/gateway/prompt_encoder.h"

#include <optional>

namespace penstock::gateway {
namespace {

// What a byte of unknown text is reckoned to need: prose and code have more than three a token.
constexpr std::size_t kBytesForToken = 3;

// One span on its way: its ids when the cache knows them, else where they are in the prompt.
struct Piece {
  std::optional<SpanCache::Span> place;  // set when the cache wants the span
  TokenIds known;
  std::size_t begin = 0;
  std::size_t end = 0;
};

Status append_all(const Tokenizer& tokenizer, std::span<const PromptSpan> spans,
                  std::span<Piece> pieces, std::vector<TokenId>& prompt) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    Piece& piece = pieces[i];
    piece.begin = prompt.size();
    if (piece.known) {
      prompt.insert(prompt.end(), piece.known->begin(), piece.known->end());
    } else {
      TRY_STATUS(tokenizer.encode(spans.subspan(i, 1), nullptr, prompt));
    }
    piece.end = prompt.size();
  }
  return {};
}

}  // namespace

Task<Result<TokenIds>> PromptEncoder::encode(const Tokenizer& tokenizer,
                                             std::vector<PromptSpan> spans) {
  std::vector<Piece> pieces(spans.size());
  std::size_t unknown_bytes = 0;
  std::size_t known_ids = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::string& text = spans[i].text;
    if (spans[i].kind == SpanKind::kPlain && cache_.wants(text.size())) {
      pieces[i].place = cache_.place(tokenizer.fingerprint(), text);
      pieces[i].known = cache_.find(*pieces[i].place);
    }
    if (pieces[i].known) {
      known_ids += pieces[i].known->size();
    } else {
      unknown_bytes += text.size();
    }
  }

  auto prompt = std::make_shared<std::vector<TokenId>>();
  prompt->reserve(known_ids + unknown_bytes / kBytesForToken);
  Status encoded;
  if (unknown_bytes <= kInlineBytesMax) {
    encoded = append_all(tokenizer, spans, pieces, *prompt);
  } else {
    CO_TRY_STATUS(co_await run_on(
        pool_, clock_, [&] { encoded = append_all(tokenizer, spans, pieces, *prompt); }));
  }
  CO_TRY_STATUS(std::move(encoded));

  for (const Piece& piece : pieces) {
    if (!piece.place || piece.known) continue;
    cache_.insert(*piece.place, std::span(*prompt).subspan(piece.begin, piece.end - piece.begin));
  }
  co_return TokenIds(std::move(prompt));
}

}  // namespace penstock::gateway
