// GET /v1/models and /v1/models/{id}, in OpenAI's shape and in Anthropic's.
// Concurrency: pure. Source: facts/api.md 3.4 and 3.5.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace penstock::protocol {

struct ModelCard {
  std::string id = {};
  std::int64_t created = 0;  // seconds since 1970
  std::string owned_by = "penstock";
  std::uint32_t context_length = 0;  // sent as context_length and max_model_len when not 0
};

std::string model_object(const ModelCard& model);
std::string model_list(std::span<const ModelCard> models);

// The same in Anthropic's shape; the list is one page.
std::string anthropic_model_object(const ModelCard& model);
std::string anthropic_model_list(std::span<const ModelCard> models);

}  // namespace penstock::protocol
