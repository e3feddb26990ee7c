#include "core/prompt/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "core/prompt/bpe.h"
#include "core/prompt/detokenizer.h"
#include "core/prompt/pretokenizer.h"
#include "core/prompt/pretokenizer_regex.h"
#include "core/prompt/span_cache.h"
#include "core/prompt/tokenizer_added.h"
#include "core/prompt/tokenizer_json.h"
#include "core/prompt/unicode_nfc.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {

struct Tokenizer::State {
  enum Flag : std::uint8_t { kAdded = 1, kSpecial = 2 };

  std::uint64_t fingerprint = 0;
  std::string bytes;                  // of all tokens, by id
  std::vector<std::uint32_t> begins;  // by id, one more at the end
  std::vector<std::uint8_t> flags;    // by id
  ByteTrie added_ids;                 // content -> id
  AddedTokenFinder raw;               // added tokens with normalized=false
  AddedTokenFinder normalized;
  std::optional<unicode::Nfc> nfc;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
};

namespace {

// What one call needs beside the tokenizer.
struct Scratch {
  explicit Scratch(const PreTokenizer& pre_tokenizer) : regex(pre_tokenizer.make_scratch()) {}
  std::unique_ptr<RegexScratch> regex;
  Bpe::Scratch bpe;
  std::string repaired;
  std::string normalized;
};

// Appends the ids of well-formed text in which no added token is looked for.
Status encode_pieces(const PreTokenizer& pre_tokenizer, const Bpe& bpe, std::string_view text,
                     Scratch& scratch, std::vector<TokenId>& out) {
  auto encode_piece = [&](std::string_view piece) { bpe.encode(piece, scratch.bpe, out); };
  return pre_tokenizer.split(text, scratch.regex.get(), PieceSink(encode_piece));
}

// Returns the text with ill-formed bytes replaced.
Result<std::string_view> repaired(std::string_view text, std::string& storage) {
  if (text.size() > Tokenizer::kTextBytesMax) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("a text of {} bytes is over the tokenizer's limit of {}", text.size(),
                            Tokenizer::kTextBytesMax));
  }
  if (unicode::well_formed_prefix(text) == text.size()) return text;
  storage.clear();
  unicode::append_repaired(text, storage);
  return std::string_view(storage);
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json) {
  TRY(TokenizerFile file, read_tokenizer_json(tokenizer_json));
  auto state = std::make_unique<State>();
  state->fingerprint = checksum64(tokenizer_json);
  const std::size_t ids = file.decoded.size();
  state->flags.resize(ids);
  for (const std::string& bytes : file.decoded) {
    state->begins.push_back(static_cast<std::uint32_t>(state->bytes.size()));
    state->bytes += bytes;
  }
  state->begins.push_back(static_cast<std::uint32_t>(state->bytes.size()));

  if (file.normalizes_nfc) state->nfc.emplace();
  std::vector<ByteTrie::Item> contents;
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (const AddedToken& token : file.added) {
    state->flags[token.id] = token.special ? State::kAdded | State::kSpecial : State::kAdded;
    contents.push_back({token.content, token.id});
    (token.normalized ? normalized : raw).push_back(token);
  }
  if (state->nfc) {
    std::string storage;
    for (AddedToken& token : normalized) {
      token.content = std::string(state->nfc->normalize(token.content, storage));
    }
  }
  TRY(state->added_ids, ByteTrie::build(std::move(contents)));
  TRY(state->raw, AddedTokenFinder::build(std::move(raw)));
  TRY(state->normalized, AddedTokenFinder::build(std::move(normalized)));

  Bpe::Vocabulary vocabulary;
  vocabulary.bytes.assign(file.text_bytes.begin(), file.text_bytes.end());
  vocabulary.added.resize(ids);
  for (const AddedToken& token : file.added)
    vocabulary.added[token.id] = true;
  vocabulary.merges = std::move(file.merges);
  vocabulary.ignore_merges = file.ignore_merges;
  auto bpe = Bpe::build(vocabulary);
  if (!bpe) return std::unexpected(std::move(bpe).error().within("tokenizer.json"));
  state->bpe = std::move(*bpe);
  state->pre_tokenizer = std::move(file.pre_tokenizer);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

Status Tokenizer::encode(std::string_view text, std::vector<TokenId>& out) const {
  Scratch scratch(state_->pre_tokenizer);
  TRY(text, repaired(text, scratch.repaired));
  if (state_->nfc) text = state_->nfc->normalize(text, scratch.normalized);
  const std::size_t before = out.size();
  Status status = encode_pieces(state_->pre_tokenizer, state_->bpe, text, scratch, out);
  if (!status) out.resize(before);
  return status;
}

Status Tokenizer::encode(std::span<const PromptSpan> spans, SpanCache* cache,
                         std::vector<TokenId>& out) const {
  const std::size_t before = out.size();
  const auto encode_span = [&](const PromptSpan& span) -> Status {
    if (span.kind == SpanKind::kSpecial) {
      const std::uint32_t id = state_->added_ids.find(span.text);
      if (id == ByteTrie::kNone) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the tokenizer has no added token \"{}\", which the chat encoding "
                                "needs",
                                span.text));
      }
      out.push_back(id);
      return {};
    }
    if (cache == nullptr || !cache->wants(span.text.size())) return encode(span.text, out);
    const SpanCache::Span place = cache->place(state_->fingerprint, span.text);
    if (const TokenIds ids = cache->find(place)) {
      out.insert(out.end(), ids->begin(), ids->end());
      return {};
    }
    const std::size_t begin = out.size();
    TRY_STATUS(encode(span.text, out));
    cache->insert(place, std::span(out).subspan(begin));
    return {};
  };
  for (const PromptSpan& span : spans) {
    if (Status status = encode_span(span); !status) {
      out.resize(before);
      return status;
    }
  }
  return {};
}

Status Tokenizer::encode_with_added_tokens(std::string_view text, std::vector<TokenId>& out) const {
  Scratch scratch(state_->pre_tokenizer);
  TRY(text, repaired(text, scratch.repaired));
  const std::size_t before = out.size();
  Status status;
  const auto on_token = [&](TokenId id) { out.push_back(id); };
  const auto on_text = [&](std::string_view part) {
    if (!status) return;
    status = encode_pieces(state_->pre_tokenizer, state_->bpe, part, scratch, out);
  };
  const auto on_raw_text = [&](std::string_view part) {
    if (state_->nfc) part = state_->nfc->normalize(part, scratch.normalized);
    state_->normalized.find(part, on_text, on_token);
  };
  state_->raw.find(text, on_raw_text, on_token);
  if (!status) out.resize(before);
  return status;
}

std::vector<PromptSpan> Tokenizer::split_added(std::string_view text) const {
  std::vector<PromptSpan> spans;
  const auto on_token = [&](TokenId id) {
    spans.push_back({SpanKind::kSpecial, std::string(token_bytes(id))});
  };
  const auto on_text = [&](std::string_view part) {
    spans.push_back({SpanKind::kPlain, std::string(part)});
  };
  state_->raw.find(
      text, [&](std::string_view part) { state_->normalized.find(part, on_text, on_token); },
      on_token);
  return spans;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, Special special) const {
  std::string out;
  IncrementalDetokenizer detokenizer(*this, special);
  for (const TokenId id : ids)
    detokenizer.push(id, out);
  detokenizer.finish(out);
  return out;
}

std::optional<TokenId> Tokenizer::token_id(std::string_view content) const {
  if (const std::uint32_t id = state_->added_ids.find(content); id != ByteTrie::kNone) return id;
  if (const TokenId id = state_->bpe.find(content); id != MergeTable::kNone) return id;
  return std::nullopt;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id >= vocab_size()) return {};
  const std::uint32_t begin = state_->begins[id];
  return std::string_view(state_->bytes).substr(begin, state_->begins[id + 1] - begin);
}

bool Tokenizer::is_special(TokenId id) const {
  return id < vocab_size() && (state_->flags[id] & State::kSpecial) != 0;
}

bool Tokenizer::is_added(TokenId id) const {
  return id < vocab_size() && (state_->flags[id] & State::kAdded) != 0;
}

std::size_t Tokenizer::vocab_size() const {
  return state_->flags.size();
}

std::uint64_t Tokenizer::fingerprint() const {
  return state_->fingerprint;
}

}  // namespace penstock
