// The configuration file: YAML, checked key by key against the option table.
//
// JSON is YAML, so the effective configuration that the supervisor writes for its children is read
// here too.
//
// Errors: kInvalidArgument as "FILE:LINE: key: what is wrong", for syntax, unknown keys (with the
// nearest known one), keys given twice and values of the wrong type or out of range. Concurrency:
// pure.
#pragma once

#include <string>
#include <string_view>

#include "app/environment.h"
#include "app/options.h"
#include "base/result.h"

namespace penstock {

// Reads the file's keys over what is in `options`.
Status load_config_file(const std::string& path, const Environment& environment, Options& options);

// The same from text; `path` is for messages and for relative paths in it.
Status apply_config(std::string_view text, const std::string& path, const Environment& environment,
                    Options& options);

// The options as a JSON document that load_config_file reads back to the same values.
std::string effective_config(const Options& options);

}  // namespace penstock
