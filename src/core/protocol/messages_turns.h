// The conversation of a Messages request. Internal to core/protocol; errors as in json_fields.h.
// Concurrency: pure.
#pragma once

#include "base/result.h"
#include "core/protocol/json_document.h"
#include "domain/conversation.h"

namespace penstock::protocol {

// `system` and `messages`.
Status read_turns(JsonRef body, Conversation& conversation);

}  // namespace penstock::protocol
