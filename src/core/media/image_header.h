// What an image says about itself: its real type by the first bytes, and its size by its header.
//
// Nothing is decoded: a few bytes are read at fixed places, and for JPEG the chain of segments is
// followed up to the frame header. So a picture that would unpack to gigabytes costs no more than
// any other, and is refused here by its width and height. A declared media type is never believed.
//
// Units and shapes: pixels; a GIF's size is that of its logical screen. Errors: kInvalidArgument
// with the codes of the Responses API: empty_image_file, image_file_too_large,
// unsupported_image_media_type, image_parse_error, image_too_large. Concurrency: pure.
// Source: PNG (ISO 15948) 11.2.2, ITU-T T.81 B.2.2, GIF89a 17-18, RFC 9649.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::media {

enum class ImageType : std::uint8_t { kPng, kJpeg, kGif, kWebp };

struct ImageLimits {
  std::size_t bytes_max = std::size_t{20} << 20;
  std::uint32_t side_max = 16'384;
  std::uint64_t pixels_max = 50'000'000;  // 200 MB once decoded to 4 bytes a pixel
};

struct ImageInfo {
  ImageType type = ImageType::kPng;
  std::uint32_t width = 0;
  std::uint32_t height = 0;

  bool operator==(const ImageInfo&) const = default;
};

// "image/png", ...
std::string_view media_type(ImageType type);
// One of the four types, in any letter case and with any parameters; image/jpg counts as JPEG.
bool is_image_media_type(std::string_view text);

// Linear in the bytes before a JPEG's frame header, else constant.
Result<ImageInfo> read_image_header(std::string_view bytes, const ImageLimits& limits = {});

}  // namespace penstock::media
