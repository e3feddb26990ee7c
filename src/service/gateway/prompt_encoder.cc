#include "service/gateway/prompt_encoder.h"

#include <optional>

namespace penstock::gateway {
namespace {

// One span on its way: its ids, or what is needed to make them.
struct Piece {
  const PromptSpan* span = nullptr;
  std::optional<Hash128> key;  // set when the cache wants the span
  bool known = false;
  std::vector<TokenId> ids;
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
      if (const auto* ids = cache_.find(*piece.key, text.size())) {
        piece.ids = *ids;
        piece.known = true;
        continue;
      }
    }
    unknown_bytes += text.size();
  }

  Status encoded;
  if (unknown_bytes <= kInlineBytesMax) {
    encoded = encode_unknown(tokenizer, pieces);
  } else {
    CO_TRY_STATUS(
        co_await run_on(pool_, clock_, [&] { encoded = encode_unknown(tokenizer, pieces); }));
  }
  CO_TRY_STATUS(std::move(encoded));

  auto prompt = std::make_shared<std::vector<TokenId>>();
  for (Piece& piece : pieces) {
    if (piece.key && !piece.known) cache_.insert(*piece.key, piece.ids);
    prompt->insert(prompt->end(), piece.ids.begin(), piece.ids.end());
  }
  co_return TokenIds(std::move(prompt));
}

}  // namespace penstock::gateway
