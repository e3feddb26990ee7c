#include "io/embedded/grammar_constraints.h"

#include <algorithm>
#include <vector>

#include "core/grammar/constraint.h"
#include "core/prompt/tokenizer.h"

namespace penstock {

class GrammarConstraints::Choice final : public engine::TokenConstraint {
 public:
  Choice(GrammarConstraints& all, std::shared_ptr<Kept> kept, std::optional<TokenId> after)
      : all_(all),
        maker_(all.maker_),
        kept_(std::move(kept)),
        matcher_(kept_->grammar),
        after_(after) {}

  bool take(TokenId token) override {
    if (after_) {
      if (token == *after_) after_.reset();
      return true;
    }
    const std::string_view bytes =
        token < maker_.vocabulary().size() ? maker_.vocabulary().bytes(token) : std::string_view();
    if (bytes.empty()) return matcher_.advance_symbol(grammar::kTokenSymbol + token);
    return matcher_.advance(bytes);
  }

  bool allow(std::span<std::uint64_t> allowed) override {
    if (after_) {
      // Reasoning: ordinary tokens, and the one that ends it.
      std::ranges::fill(allowed, 0);
      const auto permit = [&](TokenId id) { allowed[id / 64] |= std::uint64_t{1} << (id % 64); };
      for (TokenId id = 0; id < maker_.vocabulary().size(); ++id) {
        if (!maker_.vocabulary().bytes(id).empty()) permit(id);
      }
      if (*after_ < maker_.vocabulary().size()) permit(*after_);
      return false;
    }
    const std::size_t before = kept_->bytes();
    maker_.mask(matcher_, kept_->masks, allowed);
    all_.kept_bytes_ = all_.kept_bytes_ - before + kept_->bytes();
    all_.make_room(*kept_);
    return matcher_.complete();
  }

 private:
  GrammarConstraints& all_;
  grammar::MaskMaker& maker_;
  std::shared_ptr<Kept> kept_;
  grammar::Matcher matcher_;
  std::optional<TokenId> after_;
};

Result<std::unique_ptr<GrammarConstraints>> GrammarConstraints::open(
    std::string_view tokenizer_json, std::uint32_t vocab_size, std::size_t kept_bytes_max) {
  TRY(const auto tokenizer, Tokenizer::from_json(tokenizer_json));
  std::vector<std::string> bytes(vocab_size);
  for (TokenId id = 0; id < bytes.size(); ++id) {
    if (!tokenizer->is_added(id) && !tokenizer->is_special(id))
      bytes[id] = tokenizer->token_bytes(id);
  }
  TRY(auto vocabulary, grammar::Vocabulary::build(std::move(bytes)));
  return std::unique_ptr<GrammarConstraints>(
      new GrammarConstraints(std::move(vocabulary), kept_bytes_max));
}

std::size_t GrammarConstraints::Kept::bytes() const {
  return sizeof(Kept) + key.capacity() + grammar->bytes() + masks.bytes();
}

void GrammarConstraints::make_room(const Kept& used) {
  for (auto at = kept_.end(); kept_bytes_ > kept_bytes_max_ && at != kept_.begin();) {
    --at;
    Kept& kept = **at;
    if (&kept == &used) continue;
    kept_bytes_ -= kept.bytes();
    kept.masks = {};
    if (at->use_count() == 1) {
      index_.erase(kept.key);
      at = kept_.erase(at);
    } else {
      kept_bytes_ += kept.bytes();
    }
  }
}

Result<std::unique_ptr<engine::TokenConstraint>> GrammarConstraints::start(
    const Constraint& constraint) {
  if (constraint.after && *constraint.after >= maker_.vocabulary().size()) {
    return fail(ErrorCode::kInvalidArgument,
                "the token behind which the constraint begins lies outside the vocabulary",
                "response_format");
  }
  std::string key(1, static_cast<char>(constraint.kind));
  key += constraint.text;
  if (const auto found = index_.find(key); found != index_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
  } else {
    auto grammar = grammar::compile(constraint);
    if (!grammar) {
      Error error = std::move(grammar).error();
      error.field = "response_format";
      return std::unexpected(std::move(error));
    }
    kept_.push_front(std::make_shared<Kept>(std::move(key), std::move(*grammar)));
    index_.emplace(kept_.front()->key, kept_.begin());
    kept_bytes_ += kept_.front()->bytes();
    make_room(*kept_.front());
  }
  return std::make_unique<Choice>(*this, kept_.front(), constraint.after);
}

}  // namespace penstock
