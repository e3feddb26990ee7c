// MemoryResponses: a ResponseStore without a disk, for tests of the service.
// Concurrency: one thread.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "port/response_store.h"

namespace penstock::testing {

class MemoryResponses final : public ResponseStore {
 public:
  Status put(const StoredResponse& response) override {
    if (refuse_writes) return fail(ErrorCode::kIo, "the disk is gone");
    all[response.id] = {response, {}};
    return {};
  }
  Result<std::optional<StoredResponse>> find(std::string_view owner, std::string_view id) override {
    const auto at = all.find(id);
    if (at == all.end() || at->second.first.owner != owner) return std::nullopt;
    return at->second.first;
  }
  Result<std::vector<StoredResponse>> chain(std::string_view owner, std::string_view id) override {
    std::vector<StoredResponse> out;
    for (std::string next(id); !next.empty(); next = out.front().previous_id) {
      const auto found = find(owner, next);
      if (!*found) return std::vector<StoredResponse>();
      out.insert(out.begin(), **found);
    }
    return out;
  }
  Result<bool> erase(std::string_view owner, std::string_view id) override {
    return find(owner, id)->has_value() && all.erase(std::string(id)) > 0;
  }
  Result<bool> append(std::string_view id, const std::vector<StoredEvent>& events) override {
    if (refuse_writes) return fail(ErrorCode::kIo, "the disk is gone");
    const auto at = all.find(id);
    if (at == all.end() || !at->second.first.running) return false;
    at->second.second.insert(at->second.second.end(), events.begin(), events.end());
    return true;
  }
  Result<bool> finish(const StoredResponse& response,
                      const std::vector<StoredEvent>& events) override {
    const auto goes_on = append(response.id, events);
    if (!goes_on || !*goes_on) return goes_on;
    StoredResponse& stored = all.find(response.id)->second.first;
    stored.running = false;
    stored.output = response.output;
    stored.body = response.body;
    return true;
  }
  Result<std::optional<StoredResponse>> end(std::string_view owner, std::string_view id,
                                            const MakeEnding& make) override {
    const auto found = find(owner, id);
    if (!*found || !(*found)->running) return found;
    auto& [stored, events] = all.find(id)->second;
    auto ending = make(stored, events.size());
    stored.body = std::move(ending.body);
    stored.running = false;
    events.insert(events.end(), ending.events.begin(), ending.events.end());
    return stored;
  }
  Result<std::size_t> end_all(const MakeEnding& /*make*/) override { return std::size_t{0}; }
  Result<std::vector<StoredEvent>> events(std::string_view id, std::int64_t after,
                                          std::size_t count_max) override {
    std::vector<StoredEvent> out;
    const auto at = all.find(id);
    if (at == all.end()) return out;
    for (const StoredEvent& event : at->second.second) {
      if (static_cast<std::int64_t>(event.sequence) > after && out.size() < count_max)
        out.push_back(event);
    }
    return out;
  }
  Status expire(std::int64_t /*now*/) override { return {}; }

  std::map<std::string, std::pair<StoredResponse, std::vector<StoredEvent>>, std::less<>> all;
  bool refuse_writes = false;
};

}  // namespace penstock::testing
