// API keys: who may call, from a file of lines "NAME KEY [class=CLASS] [priority=N]
// [weight=X]".
//
// Blank lines and lines that start with '#' are skipped. NAME goes into logs and metrics, KEY is
// what the client sends as bearer token, CLASS the cache class of its requests (docs/kv-cache.md),
// N and X its priority and its share when requests have to wait (docs/routing.md).
// Only SHA-256 digests of the keys stay in memory; a
// presented key is hashed and compared with every digest without an early exit, so the time tells
// nothing about how much of a key was right or which key it was.
//
// Invariants: names are unique, [A-Za-z0-9._-]{1,64}; keys are unique, 16 to 512 visible ASCII
// characters; at most 10,000 keys. Errors: kPermissionDenied when group or others can read the file
// (says chmod 600); kInvalidArgument with the line number for a bad line, never with the key; kIo
// when it cannot be read. Concurrency: immutable after loading.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

class ApiKeys {
 public:
  struct Share {
    int priority = 0;   // -100 to 100
    double weight = 1;  // 0.01 to 1000
  };
  static Result<ApiKeys> load(const std::string& path);
  static Result<ApiKeys> parse(std::string_view text, std::string_view path);

  // The name that belongs to the key, valid as long as this object; nullopt for an unknown key.
  // About 30 ns a key on file plus one SHA-256.
  std::optional<std::string_view> lookup(std::string_view presented) const;
  std::size_t size() const { return entries_.size(); }
  // Cache classes by name, of the keys that have one.
  const std::map<std::string, std::string>& cache_classes() const { return cache_classes_; }
  // By name, of the keys that have a priority or a weight.
  const std::map<std::string, Share>& shares() const { return shares_; }

 private:
  using Digest = std::array<std::uint8_t, 32>;
  struct Entry {
    Digest digest;
    std::string name;
  };
  std::vector<Entry> entries_;
  std::map<std::string, std::string> cache_classes_;
  std::map<std::string, Share> shares_;
};

}  // namespace penstock
