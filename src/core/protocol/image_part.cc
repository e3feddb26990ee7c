#include "core/protocol/image_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "core/media/data_url.h"
#include "core/media/image_header.h"
#include "core/protocol/json_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::array<std::string_view, 3> kTypes = {"image_url", "input_image", "image"};
constexpr std::size_t kUrlBytesMax = 2048;  // of one that is not a data URL
constexpr std::size_t kModelNameShownBytesMax = 100;

std::unexpected<Error> at(JsonRef value, Error error) {
  error.field = value.path();
  return std::unexpected(std::move(error).within(error.field));
}

Status check_image(JsonRef value, const Result<std::string>& bytes) {
  if (!bytes) return at(value, bytes.error());
  if (const auto info = media::read_image_header(*bytes); !info) return at(value, info.error());
  return {};
}

Status check_url(JsonRef value) {
  TRY(const auto url, read_string(value));
  if (media::is_data_url(url))
    return check_image(value, media::decode_image_url(url, media::ImageLimits{}.bytes_max));
  if (!url.starts_with("https://") && !url.starts_with("http://")) {
    return at(value, {ErrorCode::kInvalidArgument,
                      "must begin with https://, http:// or data:",
                      {},
                      "invalid_image_url"});
  }
  if (url.size() > kUrlBytesMax) {
    return at(value, {ErrorCode::kInvalidArgument,
                      fmt::format("the address is longer than {} bytes", kUrlBytesMax),
                      {},
                      "invalid_image_url"});
  }
  return {};
}

Status check_file_id(JsonRef owner) {
  TRY(const auto id, required_member(owner, "file_id"));
  return unsupported(id, "no files are stored here; send the image as a data URL");
}

// Chat Completions: {"image_url": {"url": ..., "detail": ...}}.
Status check_chat(JsonRef part) {
  TRY(const auto image, required_member(part, "image_url"));
  TRY_STATUS(expect_object(image));
  if (const auto detail = optional_member(image, "detail"))
    TRY_STATUS(read_choice(detail, {"auto", "low", "high", "original"}));
  TRY(const auto url, required_member(image, "url"));
  return check_url(url);
}

// Responses: {"image_url": ..., "file_id": ..., "detail": ...}, one of the first two.
Status check_responses(JsonRef part) {
  if (const auto detail = optional_member(part, "detail"))
    TRY_STATUS(read_choice(detail, {"auto", "low", "high", "original"}));
  if (optional_member(part, "file_id")) return check_file_id(part);
  TRY(const auto url, required_member(part, "image_url"));
  return check_url(url);
}

// Messages: {"source": {"type": "base64", "media_type": ..., "data": ...} or a url or a file}.
Status check_messages(JsonRef part) {
  TRY(const auto source, required_member(part, "source"));
  TRY_STATUS(expect_object(source));
  TRY(const auto type, required_member(source, "type"));
  TRY(const auto index, read_choice(type, {"base64", "url", "file"}));
  if (index == 2) return check_file_id(source);
  if (index == 1) {
    TRY(const auto url, required_member(source, "url"));
    return check_url(url);
  }
  TRY(const auto declared, required_member(source, "media_type"));
  TRY_STATUS(read_choice(declared, {"image/png", "image/jpeg", "image/gif", "image/webp"}));
  TRY(const auto data, required_member(source, "data"));
  TRY(const auto text, read_string(data));
  return check_image(data, media::decode_base64(text, media::ImageLimits{}.bytes_max));
}

// As the client wrote it, quotes included; nothing when that says no name.
std::string_view model_name(JsonRef part) {
  const JsonRef body = part.root();
  if (!body.is_object()) return {};
  const JsonRef model = body.find("model");
  if (!model || !model.is_string() || model.text().size() > kModelNameShownBytesMax) return {};
  return model.text();
}

}  // namespace

bool is_image_type(JsonRef type) {
  return std::ranges::any_of(kTypes, [&](std::string_view name) { return type.equals(name); });
}

std::unexpected<Error> refuse_image(JsonRef part) {
  const JsonRef type = part.find("type");
  const Status sound = type.equals(kTypes[0])   ? check_chat(part)
                       : type.equals(kTypes[1]) ? check_responses(part)
                                                : check_messages(part);
  if (!sound) return std::unexpected(sound.error());
  const auto model = model_name(part);
  return unsupported(
      type, fmt::format("the model {}{}reads no images, none here does; send text only", model,
                        model.empty() ? "" : " "));
}

}  // namespace penstock::protocol
