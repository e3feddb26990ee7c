// Script: a fuzzer's bytes as a script of events, for the fuzzers of answers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::protocol {

class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  unsigned byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view text() {
    const auto piece = rest_.substr(0, byte() % 16);
    rest_.remove_prefix(std::min(rest_.size(), piece.size()));
    return piece;
  }

 private:
  std::string_view rest_;
};

}  // namespace penstock::protocol
