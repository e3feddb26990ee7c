#include "core/protocol/models.h"

#include "core/protocol/json_writer.h"

namespace penstock::protocol {

std::string model_object(const ModelCard& model) {
  std::string out = R"({"id":)";
  append_json_string(out, model.id);
  out += R"(,"object":"model","created":)";
  append_json_number(out, model.created);
  out += R"(,"owned_by":)";
  append_json_string(out, model.owned_by);
  if (model.context_length != 0) {
    const auto length = std::uint64_t{model.context_length};
    out += R"(,"context_length":)";
    append_json_number(out, length);
    out += R"(,"max_model_len":)";
    append_json_number(out, length);
  }
  out += '}';
  return out;
}

std::string model_list(std::span<const ModelCard> models) {
  std::string out = R"({"object":"list","data":[)";
  for (const ModelCard& model : models) {
    if (out.back() == '}') out += ',';
    out += model_object(model);
  }
  out += "]}";
  return out;
}

}  // namespace penstock::protocol
