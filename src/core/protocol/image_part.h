// Image parts of the three request formats. Internal to core/protocol.
//
// No model here reads images, so the end is always a refusal; but an image that no model could
// read is refused for what is wrong with it: a malformed or unsafe address, bad base64, an unknown
// type, too many bytes or pixels. Nothing is fetched.
//
// Errors: of core/media with the path of the value; kUnsupported for a sound image and for a file
// id. Concurrency: pure. Source: facts/api.md 3.2 to 3.4.
#pragma once

#include "base/result.h"
#include "core/protocol/json_document.h"

namespace penstock::protocol {

// True for the type of a part that holds an image: image_url, input_image or image.
bool is_image_type(JsonRef type);

// What is wrong with an image part, or that the request's model reads none. Costs a decoding of
// base64 into memory of at most media::ImageLimits::bytes_max.
// Precondition: is_image_type(part.find("type")).
std::unexpected<Error> refuse_image(JsonRef part);

}  // namespace penstock::protocol
