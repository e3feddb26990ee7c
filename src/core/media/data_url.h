// Bytes inside text: base64, and data URLs that carry an image.
//
// Strict, so that one image has one spelling and nothing is guessed: the standard alphabet, padded
// to whole groups of four, unused bits zero, no white space. The size is checked before anything is
// decoded. The declared type must be one of an image; what the bytes are is for image_header.h.
//
// Errors: kInvalidArgument with code invalid_base64_image, invalid_image_url,
// unsupported_image_media_type or image_file_too_large; messages quote nothing of the content.
// Concurrency: pure. Source: RFC 4648 section 4, RFC 2397.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::media {

Result<std::string> decode_base64(std::string_view text, std::size_t bytes_max);

// True when the text begins like a data URL, in any letter case.
bool is_data_url(std::string_view text);

// The bytes of data:image/TYPE[;parameter=value]...;base64,BYTES.
Result<std::string> decode_image_url(std::string_view url, std::size_t bytes_max);

}  // namespace penstock::media
