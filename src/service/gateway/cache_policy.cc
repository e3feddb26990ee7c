#include "service/gateway/cache_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>

namespace penstock::gateway {
namespace {

std::string scope_text(CacheScope scope, const std::string& tenant, const std::string& user) {
  switch (scope) {
    case CacheScope::kDeployment:
      return "deployment";
    case CacheScope::kUser:
      // A tenant's name holds no '/', so two pairs never give one text.
      if (!user.empty()) return fmt::format("user:{}/{}", tenant, user);
      [[fallthrough]];
    case CacheScope::kTenant:
      break;
  }
  return "tenant:" + tenant;
}

}  // namespace

Result<CacheHints> cache_hints(const CachePolicy& policy, const protocol::ChatRequest& request,
                               const RequestRecord& record) {
  if (!policy.enabled) return CacheHints{};
  const auto is_known = [&](std::string_view name) {
    return std::ranges::find(policy.classes, name) != policy.classes.end();
  };
  CacheHints hints;
  hints.tenant = record.key_name.empty() ? "local" : record.key_name;
  hints.scope = scope_text(policy.scope, hints.tenant, request.user_id);
  hints.request = record.request_id;
  if (!request.cache_class.empty()) {
    if (!is_known(request.cache_class)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("there is no cache class '{}' here; there are: {}",
                              request.cache_class, fmt::join(policy.classes, ", ")),
                  "cache_class");
    }
    hints.ttl_class = request.cache_class;
  } else if (const auto of_key = policy.key_classes.find(record.key_name);
             of_key != policy.key_classes.end()) {
    hints.ttl_class = of_key->second;
  } else {
    const char* const usual = request.conversation.tools.empty() ? "chat" : "agent";
    if (is_known(usual)) hints.ttl_class = usual;
  }
  return hints;
}

}  // namespace penstock::gateway
