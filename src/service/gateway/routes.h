// Which API a path belongs to, for who answers before the gateway has the request.
// Concurrency: pure.
#pragma once

#include <string_view>

#include "core/protocol/errors.h"

namespace penstock::gateway {

// The shape of errors at this path; OpenAI's where no route is.
protocol::ErrorShape error_shape_at(std::string_view path);

}  // namespace penstock::gateway
