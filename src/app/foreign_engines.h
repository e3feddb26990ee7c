// The servers of others that --engine names.
//
// --engine is either one word, embedded or scripted, or one or more KIND=URL with further
// NAME=VALUE after commas: key-file, a file with the server's key that only its owner may read;
// name, for logs; role, prefill, decode or encode, for engines that share the work; connector, nixl
// or mooncake, by which vLLM's do; bootstrap-host and bootstrap-port, of prefill engines;
// kv-events, kv-replay and kv-topic, of KV events. file=FILE names a file of more of them, a line
// each, which may change while the gateway runs (ForeignFleet).
//
// Errors: kInvalidArgument naming the word at fault. Concurrency: pure, but for the files, which
// are read.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"
#include "base/result.h"
#include "core/dialects/dialect.h"
#include "service/foreign/engine_set.h"

namespace penstock {

inline constexpr Bytes kEnginesFileMax{1 << 20};

struct ForeignEngine {
  dialects::EngineKind kind = dialects::EngineKind::kVllm;
  std::string name;  // "vllm-0", of the file "vllm-HOST:PORT", or as given; unique
  std::string url;
  std::string key_file;  // empty: no key
  foreign::EngineRole role = foreign::EngineRole::kMixed;
  std::string bootstrap_host;  // the url's, or as given
  std::uint16_t bootstrap_port = 8998;
  bool mooncake = false;  // connector=mooncake
  std::string kv_events;  // endpoint of rank 0; empty: it publishes none
  std::string kv_replay;
  std::string kv_topic;

  bool operator==(const ForeignEngine&) const = default;
};

// Empty when the engine is one of this program, or none is in the file now.
Result<std::vector<ForeignEngine>> foreign_engines(const Options& options);
// Of file=FILE; empty: there is none.
std::string engines_file(const Options& options);
// Precondition: foreign_engines() finds no mistake.
bool serves_foreign(const Options& options);

// The key in the file: one line. Fails when others may read the file.
Result<std::string> load_engine_key(const std::string& path);
// At start: every key file can be used.
Status check_engine_keys(const Options& options);

}  // namespace penstock
