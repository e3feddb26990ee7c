#include "core/protocol/embeddings.h"

#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kDimensionsMax = 1 << 20;
constexpr std::string_view kExpected = "a string, an array of token ids, or an array of these";

// A text or a token id; a list of ids where it may be one.
Status check_input(JsonRef value, bool may_be_ids) {
  if (value.is_string()) {
    if (value.string().empty()) return invalid_value(value, "must not be empty");
    return {};
  }
  if (value.is_number()) {
    TRY_STATUS(read_integer(value, {0, kTokenIdMax}));
    return {};
  }
  if (!value.is_array() || !may_be_ids) return invalid_type(value, kExpected);
  const auto first = value.first_child();
  if (!first) return invalid_value(value, "must not be empty");
  for (auto item = first; item; item = item.next_sibling()) {
    if (item.is_number() != first.is_number())
      return invalid_type(item, "like the first of its array");
    TRY_STATUS(check_input(item, false));
  }
  return {};
}

Status check_inputs(JsonRef input) {
  const auto first = input.is_array() ? input.first_child() : JsonRef();
  if (input.is_number()) return invalid_type(input, kExpected);
  if (!first || !first.is_array()) return check_input(input, true);
  for (auto ids = first; ids; ids = ids.next_sibling()) {
    if (!ids.is_array()) return invalid_type(ids, "an array of token ids, like the first");
    if (const auto id = ids.first_child(); id && !id.is_number())
      return invalid_type(id, "a token id");
    TRY_STATUS(check_input(ids, true));
  }
  return {};
}

}  // namespace

Result<EmbeddingsRequest> parse_embeddings_request(std::string_view body,
                                                   const JsonLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  ChatRequest identity;
  TRY_STATUS(read_model(root, identity));
  TRY(const auto input, required_member(root, "input"));
  TRY_STATUS(check_inputs(input));
  if (const auto format = optional_member(root, "encoding_format"))
    TRY_STATUS(read_choice(format, {"float", "base64"}));
  if (const auto dimensions = optional_member(root, "dimensions"))
    TRY_STATUS(read_integer(dimensions, {1, kDimensionsMax}));
  return EmbeddingsRequest{std::move(identity.model)};
}

}  // namespace penstock::protocol
