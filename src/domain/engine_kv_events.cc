#include "domain/engine_kv_events.h"

#include <string>

#include "base/hash.h"

namespace penstock {
namespace {

void add_field(std::string& out, char tag, std::string_view value) {
  out += tag;
  const auto size = static_cast<std::uint64_t>(value.size());
  for (unsigned shift = 0; shift < 64; shift += 8)
    out += static_cast<char>(size >> shift & 0xFF);
  out += value;
}

}  // namespace

std::uint64_t kv_context(std::string_view lora, std::string_view salt) {
  if (lora.empty() && salt.empty()) return 0;
  std::string framed;
  add_field(framed, 'L', lora);
  add_field(framed, 'S', salt);
  return checksum64(framed);
}

std::uint64_t kv_media(std::string_view hash) {
  std::string framed;
  add_field(framed, 'M', hash);
  return checksum64(framed);
}

}  // namespace penstock
