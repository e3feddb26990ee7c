// Recorded expert loads of one model as a file: JSON, one object a line.
//
//   {"schema":"penstock-expert-loads/1","model":"nano","first_layer":1,"layers":3,"experts":8}
//   {"window":0,"worker":"prefill-0","seconds":1.0,"picks":[[8 numbers],[8],[8]]}
//
// The first line says what was recorded, each further one what one worker's experts got in one
// window, by layer. Windows count from 0; several workers may have a line for the same one.
//
// Invariants: parse(print(x)) == x. Units: picks are (token, expert) pairs.
// Errors: kInvalidArgument with the number of the line and the field at fault: another schema,
// missing or unknown keys, wrong types, sizes that differ from the first line, numbers below 0,
// windows that go back, more than the limits. Concurrency: pure. Source: docs/experts.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::experts {

struct RecordedWindow {
  std::uint64_t number = 0;
  std::string worker;
  double seconds = 0;
  std::vector<std::uint64_t> picks;  // [layers, experts]
  bool operator==(const RecordedWindow&) const = default;
};

struct LoadRecord {
  static constexpr std::uint64_t kLayersMax = 1024;
  static constexpr std::uint64_t kPicksMax = std::uint64_t{1} << 53;  // exact in JSON everywhere

  std::string model;
  std::uint32_t first_layer = 0;  // the model's number of the first layer with routed experts
  std::uint32_t layers = 0;
  std::uint32_t experts = 0;
  std::vector<RecordedWindow> windows;
  bool operator==(const LoadRecord&) const = default;
};

// Lines without the line feed.
std::string print_header(const LoadRecord& record);
std::string print_window(const LoadRecord& record, const RecordedWindow& window);
Result<LoadRecord> parse_load_record(std::string_view text);

// Loads of one layer summed over workers, window by window.
std::vector<std::vector<double>> windows_of_layer(const LoadRecord& record, std::uint32_t layer);

}  // namespace penstock::experts
