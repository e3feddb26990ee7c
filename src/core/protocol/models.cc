#include "core/protocol/models.h"

#include <fmt/format.h>

#include <chrono>

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

std::string anthropic_model_object(const ModelCard& model) {
  std::string out = R"({"type":"model","id":)";
  append_json_string(out, model.id);
  out += R"(,"display_name":)";
  append_json_string(out, model.id);
  const std::chrono::sys_seconds created{std::chrono::seconds(model.created)};
  const auto day = std::chrono::floor<std::chrono::days>(created);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(created - day);
  out += fmt::format(R"(,"created_at":"{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z")",
                     static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count());
  if (model.context_length != 0) {
    out += R"(,"max_input_tokens":)";
    append_json_number(out, std::uint64_t{model.context_length});
  }
  out += '}';
  return out;
}

std::string anthropic_model_list(std::span<const ModelCard> models) {
  std::string out = R"({"data":[)";
  for (const ModelCard& model : models) {
    if (out.back() == '}') out += ',';
    out += anthropic_model_object(model);
  }
  out += R"(],"has_more":false,"first_id":)";
  const auto append_id = [&](const ModelCard* model) {
    if (model == nullptr) {
      out += "null";
    } else {
      append_json_string(out, model->id);
    }
  };
  append_id(models.empty() ? nullptr : &models.front());
  out += R"(,"last_id":)";
  append_id(models.empty() ? nullptr : &models.back());
  out += '}';
  return out;
}

}  // namespace penstock::protocol
