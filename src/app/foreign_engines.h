// The servers of others that --engine names.
//
// --engine is either one word, embedded or scripted, or one or more KIND=URL with further
// NAME=VALUE after commas: key-file, a file with the server's key that only its owner may read;
// name, for logs; role, prefill or decode, for engines that share the work; bootstrap-port, of
// SGLang's prefill engines.
//
// Errors: kInvalidArgument naming the word at fault. Concurrency: pure, but for the keys, which are
// read.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"
#include "base/result.h"
#include "core/dialects/dialect.h"
#include "service/foreign/engine_set.h"

namespace penstock {

struct ForeignEngine {
  dialects::EngineKind kind = dialects::EngineKind::kVllm;
  std::string name;  // "vllm-0", or as given; unique
  std::string url;
  std::string key_file;  // empty: no key
  foreign::EngineRole role = foreign::EngineRole::kMixed;
  std::string host;  // of the url
  std::uint16_t bootstrap_port = 8998;
};

// Empty when the engine is one of this program.
Result<std::vector<ForeignEngine>> foreign_engines(const Options& options);
// Precondition: foreign_engines() finds no mistake.
bool serves_foreign(const Options& options);

// The key in the file: one line. Fails when others may read the file.
Result<std::string> load_engine_key(const std::string& path);
// At start: every key file can be used.
Status check_engine_keys(const Options& options);

}  // namespace penstock
