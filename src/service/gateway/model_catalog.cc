#include "service/gateway/model_catalog.h"

#include <fmt/format.h>

#include <algorithm>

#include "service/gateway/answers.h"

namespace penstock::gateway {

Status ServedModel::check_ids(std::span<const TokenId> ids, std::string_view field) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < tokenizer->vocab_size()) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}[{}]: {} is not in the vocabulary, which has {} tokens", field, i,
                            ids[i], tokenizer->vocab_size()),
                fmt::format("{}[{}]", field, i));
  }
  return {};
}

Error ModelCatalog::not_found(std::string_view name) const {
  return {ErrorCode::kModelNotFound,
          fmt::format("the model '{}' does not exist here; there are: {}", printable_name(name),
                      names()),
          "model",
          {}};
}

Status ModelCatalog::add(ServedModel model) {
  if (by_name_.contains(model.name)) {
    return fail(ErrorCode::kConflict, fmt::format("the model name '{}' is used twice", model.name));
  }
  for (TokenId id = 0; id < model.tokenizer->vocab_size(); ++id) {
    model.token_bytes_max =
        std::max(model.token_bytes_max, model.tokenizer->token_bytes(id).size());
  }
  models_.push_back(std::make_unique<ServedModel>(std::move(model)));
  by_name_.emplace(models_.back()->name, models_.back().get());
  return {};
}

Status ModelCatalog::add_alias(std::string alias, std::string_view name) {
  const ServedModel* model = find(name);
  if (model == nullptr || model->name != name) {
    return fail(ErrorCode::kNotFound,
                fmt::format("alias '{}' names no model: there is no '{}' (there are: {})", alias,
                            name, names()));
  }
  if (by_name_.contains(alias)) {
    return fail(ErrorCode::kConflict, fmt::format("the name '{}' is used twice", alias));
  }
  by_name_.emplace(std::move(alias), model);
  return {};
}

const ServedModel* ModelCatalog::find(std::string_view name_or_alias) const {
  const auto it = by_name_.find(name_or_alias);
  return it == by_name_.end() ? nullptr : it->second;
}

std::string ModelCatalog::names() const {
  std::string out;
  for (const auto& [name, model] : by_name_) {
    if (!out.empty()) out += ", ";
    out += name == model->name ? name : fmt::format("{} (= {})", name, model->name);
  }
  return out;
}

}  // namespace penstock::gateway
