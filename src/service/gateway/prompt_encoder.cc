#include "service/gateway/prompt_encoder.h"

#include <optional>
#include <utility>

namespace penstock::gateway {
namespace {

// One span on its way: its ids, or what is needed to make them.
struct Piece {
  const PromptSpan* span = nullptr;
  std::optional<Hash128> key;  // set when the cache wants the span
  bool known = false;
  const std::vector<TokenId>* cached = nullptr;  // the cache's own, as long as nobody else runs
  std::vector<TokenId> ids;

  const std::vector<TokenId>& result() const { return cached != nullptr ? *cached : ids; }
};

Status encode_unknown(const Tokenizer& tokenizer, std::vector<Piece>& pieces) {
  for (Piece& piece : pieces) {
    if (piece.known) continue;
    TRY_STATUS(tokenizer.encode(std::span(piece.span, 1), nullptr, piece.ids));
  }
  return {};
}

}  // namespace

Task<Result<TokenIds>> PromptEncoder::encode(const Tokenizer& tokenizer,
                                             std::vector<PromptSpan> spans) {
  std::vector<Piece> pieces(spans.size());
  std::size_t unknown_bytes = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    Piece& piece = pieces[i];
    piece.span = &spans[i];
    const std::string& text = spans[i].text;
    if (spans[i].kind == SpanKind::kPlain && cache_.wants(text.size())) {
      piece.key = cache_.key(tokenizer.fingerprint(), text);
      piece.cached = cache_.find(*piece.key, text.size());
      piece.known = piece.cached != nullptr;
      if (piece.known) continue;
    }
    unknown_bytes += text.size();
  }

  Status encoded;
  if (unknown_bytes <= kInlineBytesMax) {
    encoded = encode_unknown(tokenizer, pieces);
  } else {
    for (Piece& piece : pieces) {  // other requests change the cache meanwhile
      if (const auto* const cached = std::exchange(piece.cached, nullptr)) piece.ids = *cached;
    }
    CO_TRY_STATUS(
        co_await run_on(pool_, clock_, [&] { encoded = encode_unknown(tokenizer, pieces); }));
  }
  CO_TRY_STATUS(std::move(encoded));

  auto prompt = std::make_shared<std::vector<TokenId>>();
  std::size_t tokens = 0;
  for (const Piece& piece : pieces)
    tokens += piece.result().size();
  prompt->reserve(tokens);
  for (const Piece& piece : pieces)
    prompt->insert(prompt->end(), piece.result().begin(), piece.result().end());
  // An insert may drop what `cached` points to.
  for (const Piece& piece : pieces)
    if (piece.key && !piece.known) cache_.insert(*piece.key, piece.ids);
  co_return TokenIds(std::move(prompt));
}

}  // namespace penstock::gateway
