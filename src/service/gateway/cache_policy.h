// CachePolicy: whose KV a request may share and how long it is kept: hints for the KV cache.
//
// The isolation scope is the tenant by default: an API key's name, or "local" where no keys are
// configured. With `user`, a client's own user id divides the tenant further; with `deployment`,
// everyone shares (and everyone can find out what others have asked, by the time of an answer). The
// class comes from the body's cache_class, else from the API key; else requests with tools are
// "agent" and others "chat", as far as such classes are configured.
//
// Errors: kInvalidArgument for a class that is not configured. Concurrency: a value; pure.
// Source: docs/design/0005-kv-cache.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/chat_request.h"
#include "domain/engine.h"
#include "domain/request_record.h"

namespace penstock::gateway {

enum class CacheScope : std::uint8_t { kTenant, kUser, kDeployment };

struct CachePolicy {
  bool enabled = false;
  CacheScope scope = CacheScope::kTenant;
  std::vector<std::string> classes;                     // by name; the first is the default
  std::map<std::string, std::string> key_classes = {};  // class by the name of an API key
};

Result<CacheHints> cache_hints(const CachePolicy& policy, const protocol::ChatRequest& request,
                               const RequestRecord& record);

}  // namespace penstock::gateway
