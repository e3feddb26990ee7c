// GrammarConstraints: engine::Constraints by core/grammar, over the vocabulary of a checkpoint.
//
// Grammars are compiled once and kept with the masks they came to, the last kKeptMax of them, so a
// schema that many requests share costs what its first request paid.
//
// Invariants: special and added tokens are never part of constrained text, unless the grammar names
// them by id. Errors: open() kUnsupported for a vocabulary in which not every byte is a token, and
// what the tokenizer's reader says; start() what the grammar's compiler says, in `field`
// "response_format". Concurrency: the engine's thread. Source:
// docs/design/0011-structured-output.md.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/grammar/token_mask.h"
#include "engine/constraint.h"

namespace penstock {

class GrammarConstraints final : public engine::Constraints {
 public:
  static constexpr std::size_t kKeptMax = 64;

  // `tokenizer_json` is the file's text; `vocab_size` the model's.
  static Result<std::unique_ptr<GrammarConstraints>> open(std::string_view tokenizer_json,
                                                          std::uint32_t vocab_size);
  Result<std::unique_ptr<engine::TokenConstraint>> start(const Constraint& constraint) override;

 private:
  struct Kept {
    explicit Kept(std::shared_ptr<const grammar::Grammar> g) : grammar(std::move(g)) {}
    std::shared_ptr<const grammar::Grammar> grammar;
    grammar::GrammarMasks masks;
  };
  class Choice;

  explicit GrammarConstraints(std::shared_ptr<const grammar::Vocabulary> vocabulary)
      : maker_(std::move(vocabulary)) {}

  grammar::MaskMaker maker_;
  // Kind and text of the constraint; the one asked for last is first.
  std::list<std::pair<std::string, std::shared_ptr<Kept>>> kept_;
};

}  // namespace penstock
