// POST /v1/embeddings: what is asked for, checked like the requests of the other APIs.
//
// `input` is a text, a list of texts, token ids or a list of lists of ids, none of them empty;
// encoding_format is float or base64. Errors and concurrency: as chat_request.h. Source:
// facts/api.md 3.5.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "core/protocol/json_document.h"

namespace penstock::protocol {

struct EmbeddingsRequest {
  std::string model;
};
Result<EmbeddingsRequest> parse_embeddings_request(std::string_view body,
                                                   const JsonLimits& limits = {});

}  // namespace penstock::protocol
