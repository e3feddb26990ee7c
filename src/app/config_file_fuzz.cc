// Any bytes as a configuration file: an error with a message, never a crash; and what is accepted
// survives being written and read again.
#include <cstdint>
#include <string_view>

#include "app/command_line.h"
#include "app/config_file.h"
#include "app/option_table.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Environment environment;
  environment.home = "/home/ann";
  environment.working_dir = "/nowhere";
  environment.executable = "/nowhere/bin/penstock";
  Options options = default_options();
  if (const auto status = apply_config(text, "/etc/p.yaml", environment, options); !status) {
    ENSURE(!status.error().message.empty());
    return 0;
  }
  resolve_automatic(options, environment);
  Options again = default_options();
  ENSURE(apply_config(effective_config(options), "/etc/p.json", environment, again));
  for (const auto& row : option_table())
    ENSURE(row.key.empty() || option_text(again, row) == option_text(options, row));
  return 0;
}
