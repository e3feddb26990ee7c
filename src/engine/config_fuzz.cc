// libFuzzer: any bytes as a config.json.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = penstock::engine::parse_config({reinterpret_cast<const char*>(data), size});
  if (!config) return 0;
  ENSURE(config->window.size() == config->layers);
  ENSURE(config->dense_layers <= config->layers && config->rope_width % 2 == 0);
  for (const auto token : config->eos)
    ENSURE(token < config->vocab_size);
  return 0;
}
