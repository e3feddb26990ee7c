// ModelCatalog: the models this gateway serves, by name and alias, with tokenizer and chat
// encoding.
//
// Built once at start and shared read-only by the shards. Context length and vocabulary size are
// the engine's to tell (domain/engine.h, ModelDescription): they come with the worker's stream.
//
// Invariants: names and aliases are unique; an alias names a model, never another alias.
// Errors: add() fails with kConflict. Concurrency: immutable after start.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/prompt/chat_encoding.h"
#include "core/prompt/tokenizer.h"

namespace penstock::gateway {

struct ServedModel {
  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const prompt::ChatEncoding> encoding;
  std::int64_t created = 0;         // seconds since 1970, for GET /v1/models
  std::size_t token_bytes_max = 1;  // of the longest token; set by ModelCatalog::add

  // Fails with kInvalidArgument at the first id of the client's `field` that is no token of it.
  Status check_ids(std::span<const TokenId> ids, std::string_view field) const;
};

class ModelCatalog {
 public:
  Status add(ServedModel model);
  Status add_alias(std::string alias, std::string_view name);

  // The model of that name or alias; nullptr for an unknown one. Valid as long as the catalog.
  const ServedModel* find(std::string_view name_or_alias) const;
  // What to answer when find() knows no such model: kModelNotFound, with those there are.
  Error not_found(std::string_view name) const;
  const std::vector<std::unique_ptr<ServedModel>>& models() const { return models_; }
  // Every name and alias with its model, in order of the names.
  const std::map<std::string, const ServedModel*, std::less<>>& all_names() const {
    return by_name_;
  }
  // "nano, chat (= nano)": for error messages.
  std::string names() const;

 private:
  std::vector<std::unique_ptr<ServedModel>> models_;
  std::map<std::string, const ServedModel*, std::less<>> by_name_;
};

}  // namespace penstock::gateway
