#include "app/chat_encodings.h"

#include <fmt/format.h>
#include <boost/json.hpp>
#include <chrono>

#include "core/prompt/template_encoding.h"
#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Bytes kConfigMax{16 << 20};
constexpr Bytes kTemplateMax{1 << 20};

// The file's text; nothing when there is no such file.
Result<std::optional<std::string>> read_if_there(const std::string& path, Bytes limit) {
  auto text = read_file(path, limit);
  if (text) return std::optional(std::move(*text));
  if (text.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  return std::unexpected(std::move(text).error());
}

// What the checkpoint says of its template; the one in `template_file` goes before its own.
Result<prompt::ChatTemplate> chat_template_of(const std::string& model_dir,
                                              const std::string& template_file) {
  const std::string config_path = model_dir + "/tokenizer_config.json";
  TRY(const auto config, read_if_there(config_path, kConfigMax));
  prompt::ChatTemplate out;
  if (config) {
    auto read = prompt::read_chat_template(*config);
    if (!read) return std::unexpected(std::move(read).error().within(config_path));
    out = std::move(*read);
  }
  std::optional<std::string> own;
  if (template_file.empty()) {
    TRY(own, read_if_there(model_dir + "/chat_template.jinja", kTemplateMax));
  } else {
    TRY(own, read_file(template_file, kTemplateMax));
  }
  if (own) {
    out.source = std::move(*own);
    out.tool_source.clear();
  }
  return out;
}

// `model_type` of the checkpoint's config.json; empty without one.
Result<std::string> model_type_of(const std::string& model_dir) {
  TRY(const auto config, read_if_there(model_dir + "/config.json", kConfigMax));
  boost::json::error_code error;
  const auto parsed = boost::json::parse(config.value_or("{}"), error);
  const auto* object = error ? nullptr : parsed.if_object();
  const auto* type = object == nullptr ? nullptr : object->if_contains("model_type");
  return type != nullptr && type->is_string() ? std::string(type->get_string()) : std::string();
}

std::int64_t seconds_now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

}  // namespace

Result<std::shared_ptr<const prompt::ChatEncoding>> chat_encoding_of(
    const std::string& model_dir, const std::string& template_file,
    std::shared_ptr<const Tokenizer> tokenizer) {
  TRY(const std::string model_type, model_type_of(model_dir));
  auto built_in = prompt::detect_chat_encoding(
      [&](std::string_view token) {
        const auto id = tokenizer->token_id(token);
        return id && tokenizer->is_added(*id);
      },
      model_type);
  if (template_file.empty() && built_in) return std::move(*built_in);
  TRY(const auto chat_template, chat_template_of(model_dir, template_file));
  if (chat_template.source.empty()) {
    if (built_in) return std::move(*built_in);
    auto error = std::move(built_in).error();
    error.message +=
        ", and the folder has no chat template (chat_template.jinja, or chat_template in "
        "tokenizer_config.json); name one with --chat-template";
    return std::unexpected(std::move(error));
  }
  auto made = prompt::make_template_encoding(
      chat_template,
      {[tokenizer](std::string_view text) { return tokenizer->split_added(text); }, seconds_now});
  if (made) return std::move(*made);
  return std::unexpected(
      std::move(made).error().within(template_file.empty() ? model_dir : template_file));
}

}  // namespace penstock
