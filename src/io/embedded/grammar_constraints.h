// GrammarConstraints: engine::Constraints by core/grammar, over the vocabulary of a checkpoint.
//
// Grammars are compiled once and kept by their text with the masks they came to, so a schema that
// many requests share costs what its first request paid. What was asked for least recently loses
// its masks first, and then itself unless a choice still uses it.
//
// Invariants: what is kept takes at most kKeptBytesMax, plus the automata that choices use; one
// grammar with its masks at most MaskMaker::kBytesMax. Special and added tokens are never part of
// constrained text, unless the grammar names them by id. Errors: open() kUnsupported for a
// vocabulary in which not every byte is a token, and what the tokenizer's reader says; start() what
// the grammar's compiler says, in `field` "response_format". Concurrency: one thread at a time, as
// engine::Constraints. Source:
// docs/design/0011-structured-output.md.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/grammar/token_mask.h"
#include "engine/constraint.h"

namespace penstock {

class GrammarConstraints final : public engine::Constraints {
 public:
  static constexpr std::size_t kKeptBytesMax = std::size_t{256} << 20;

  // `tokenizer_json` is the file's text; `vocab_size` the model's.
  static Result<std::unique_ptr<GrammarConstraints>> open(
      std::string_view tokenizer_json, std::uint32_t vocab_size,
      std::size_t kept_bytes_max = kKeptBytesMax);
  Result<std::unique_ptr<engine::TokenConstraint>> start(const Constraint& constraint) override;

  std::size_t kept_bytes() const { return kept_bytes_; }
  std::size_t kept_count() const { return kept_.size(); }

 private:
  struct Kept {
    std::string key;  // kind and text of the constraint
    std::shared_ptr<const grammar::Grammar> grammar;
    grammar::GrammarMasks masks;
    std::size_t bytes() const;
  };
  class Choice;

  GrammarConstraints(std::shared_ptr<const grammar::Vocabulary> vocabulary,
                     std::size_t kept_bytes_max)
      : maker_(std::move(vocabulary)), kept_bytes_max_(kept_bytes_max) {}
  // Throws away what was asked for least recently, but nothing of `used`.
  void make_room(const Kept& used);

  grammar::MaskMaker maker_;
  std::size_t kept_bytes_max_;
  std::size_t kept_bytes_ = 0;
  using List = std::list<std::shared_ptr<Kept>>;
  List kept_;                                                   // the one asked for last is first
  std::unordered_map<std::string_view, List::iterator> index_;  // by Kept::key
};

}  // namespace penstock
