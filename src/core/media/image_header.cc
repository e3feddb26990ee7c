#include "core/media/image_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace penstock::media {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpegSignature = "\xff\xd8\xff";

std::unexpected<Error> refuse(std::string_view code, std::string message) {
  return std::unexpected(
      Error{ErrorCode::kInvalidArgument, std::move(message), {}, std::string(code)});
}

std::unexpected<Error> broken(ImageType type, std::string_view why) {
  return refuse("image_parse_error", fmt::format("not a whole {}: {}", media_type(type), why));
}

std::uint32_t byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}

std::uint32_t big_endian(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i)
    value = value << 8 | byte_at(bytes, at + i);
  return value;
}

std::uint32_t little_endian(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;)
    value = value << 8 | byte_at(bytes, at + i);
  return value;
}

std::optional<ImageType> sniff(std::string_view bytes) {
  if (bytes.starts_with(kPngSignature)) return ImageType::kPng;
  if (bytes.starts_with(kJpegSignature)) return ImageType::kJpeg;
  if (bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a")) return ImageType::kGif;
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP")
    return ImageType::kWebp;
  return std::nullopt;
}

Result<ImageInfo> read_png(std::string_view bytes) {
  // Signature, then the chunk IHDR: length 13, its name, width, height, 5 more, checksum.
  if (bytes.size() < 33) return broken(ImageType::kPng, "it ends inside its header");
  if (big_endian(bytes, 8, 4) != 13 || bytes.substr(12, 4) != "IHDR")
    return broken(ImageType::kPng, "it does not begin with IHDR");
  return ImageInfo{ImageType::kPng, big_endian(bytes, 16, 4), big_endian(bytes, 20, 4)};
}

Result<ImageInfo> read_gif(std::string_view bytes) {
  if (bytes.size() < 13) return broken(ImageType::kGif, "it ends inside its header");
  return ImageInfo{ImageType::kGif, little_endian(bytes, 6, 2), little_endian(bytes, 8, 2)};
}

Result<ImageInfo> read_webp(std::string_view bytes) {
  constexpr std::size_t kBody = 20;  // of the first chunk, after RIFF, size, WEBP, name and size
  if (bytes.size() < kBody + 10) return broken(ImageType::kWebp, "it ends inside its header");
  if (little_endian(bytes, 4, 4) > bytes.size() - 8)
    return broken(ImageType::kWebp, "it is shorter than its header says");
  const auto name = bytes.substr(12, 4);
  if (name == "VP8 ") {
    if (bytes.substr(kBody + 3, 3) != "\x9d\x01\x2a")
      return broken(ImageType::kWebp, "its key frame has no start code");
    return ImageInfo{ImageType::kWebp, little_endian(bytes, kBody + 6, 2) & 0x3fff,
                     little_endian(bytes, kBody + 8, 2) & 0x3fff};
  }
  if (name == "VP8L") {
    if (byte_at(bytes, kBody) != 0x2f)
      return broken(ImageType::kWebp, "its lossless stream has no signature");
    const std::uint32_t bits = little_endian(bytes, kBody + 1, 4);
    return ImageInfo{ImageType::kWebp, (bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1};
  }
  if (name == "VP8X") {
    return ImageInfo{ImageType::kWebp, little_endian(bytes, kBody + 4, 3) + 1,
                     little_endian(bytes, kBody + 7, 3) + 1};
  }
  return broken(ImageType::kWebp, "its first chunk is of no known kind");
}

// SOF0 to SOF15, without DHT, JPG and DAC, which lie between them.
bool begins_frame(std::uint32_t marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

Result<ImageInfo> read_jpeg(std::string_view bytes) {
  for (std::size_t at = 2; at + 4 <= bytes.size();) {
    if (byte_at(bytes, at) != 0xff)
      return broken(ImageType::kJpeg, fmt::format("no marker at byte {}", at));
    const std::uint32_t marker = byte_at(bytes, at + 1);
    if (marker == 0xff) {  // fill bytes may precede a marker
      ++at;
      continue;
    }
    if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd7)) {  // these have no length
      at += 2;
      continue;
    }
    const std::uint32_t length = big_endian(bytes, at + 2, 2);
    if (marker == 0 || marker == 0xd8 || marker == 0xd9 || marker == 0xda || length < 2)
      return broken(ImageType::kJpeg, "it has no frame header before its data");
    if (begins_frame(marker)) {
      if (at + 9 > bytes.size()) break;
      return ImageInfo{ImageType::kJpeg, big_endian(bytes, at + 7, 2),
                       big_endian(bytes, at + 5, 2)};
    }
    at += 2 + length;
  }
  return broken(ImageType::kJpeg, "it ends before its frame header");
}

Result<ImageInfo> read_header(ImageType type, std::string_view bytes) {
  switch (type) {
    case ImageType::kPng:
      return read_png(bytes);
    case ImageType::kJpeg:
      return read_jpeg(bytes);
    case ImageType::kGif:
      return read_gif(bytes);
    case ImageType::kWebp:
      return read_webp(bytes);
  }
  return refuse("unsupported_image_media_type", "unknown type");
}

}  // namespace

std::string_view media_type(ImageType type) {
  constexpr std::string_view kNames[] = {"image/png", "image/jpeg", "image/gif", "image/webp"};
  return kNames[static_cast<std::size_t>(type)];
}

bool is_image_media_type(std::string_view text) {
  text = text.substr(0, text.find(';'));
  while (text.ends_with(' ') || text.ends_with('\t'))
    text.remove_suffix(1);
  const auto same = [&](std::string_view name) {
    return std::ranges::equal(text, name, [](char a, char b) {
      return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
    });
  };
  return same("image/png") || same("image/jpeg") || same("image/jpg") || same("image/gif") ||
         same("image/webp");
}

Result<ImageInfo> read_image_header(std::string_view bytes, const ImageLimits& limits) {
  if (bytes.empty()) return refuse("empty_image_file", "the image has no bytes");
  if (bytes.size() > limits.bytes_max) {
    return refuse("image_file_too_large",
                  fmt::format("the image has more than {} bytes", limits.bytes_max));
  }
  const auto type = sniff(bytes);
  if (!type) {
    return refuse("unsupported_image_media_type",
                  "the bytes are no PNG, JPEG, GIF or WebP image, whatever their name says");
  }
  TRY(const ImageInfo info, read_header(*type, bytes));
  if (info.width == 0 || info.height == 0)
    return broken(*type, fmt::format("{} x {} pixels", info.width, info.height));
  if (std::max(info.width, info.height) > limits.side_max ||
      std::uint64_t{info.width} * info.height > limits.pixels_max) {
    return refuse("image_too_large",
                  fmt::format("{} x {} pixels; at most {} a side and {} together are taken",
                              info.width, info.height, limits.side_max, limits.pixels_max));
  }
  return info;
}

}  // namespace penstock::media
