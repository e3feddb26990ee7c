#include "core/experts/load_record.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include <fmt/format.h>

#include "core/experts/placement.h"

namespace penstock::experts {
namespace {

namespace json = boost::json;

constexpr std::string_view kSchema = "penstock-expert-loads/1";

// One line of the file; the first thing wrong with it is kept.
class Line {
 public:
  Line(std::string_view text, std::size_t number) : number_(number) {
    boost::system::error_code error;
    value_ = json::parse(text, error);
    if (error)
      wrong("", fmt::format("no JSON: {}", error.message()));
    else if (!value_.is_object())
      wrong("", "an object is needed here");
  }

  const json::value* get(std::string_view key) {
    if (!value_.is_object()) return nullptr;
    ++known_;
    const json::value* found = value_.get_object().if_contains(key);
    if (found == nullptr) wrong(key, "missing");
    return found;
  }
  std::uint64_t whole(std::string_view key, std::uint64_t least, std::uint64_t most) {
    const json::value* value = get(key);
    return value == nullptr ? 0 : whole(*value, key, least, most);
  }
  std::uint64_t whole(const json::value& value, std::string_view where, std::uint64_t least,
                      std::uint64_t most) {
    boost::system::error_code error;
    const auto number = value.to_number<std::uint64_t>(error);
    if (!error && !value.is_double() && number >= least && number <= most) return number;
    wrong(where, fmt::format("a whole number from {} to {} is needed here, not {}", least, most,
                             json::serialize(value).substr(0, 40)));
    return 0;
  }
  std::string text(std::string_view key) {
    const json::value* value = get(key);
    if (value != nullptr && value->is_string()) return std::string(value->get_string());
    if (value != nullptr) wrong(key, "a string is needed here");
    return {};
  }
  double seconds(std::string_view key) {
    const json::value* value = get(key);
    if (value == nullptr) return 0;
    boost::system::error_code error;
    const auto number = value->to_number<double>(error);
    if (!error && number > 0 && number < 1e9) return number;
    wrong(key, "a time in seconds above 0 is needed here");
    return 0;
  }
  // [layers][experts] as one row after the other.
  std::vector<std::uint64_t> matrix(std::string_view key, const LoadRecord& record) {
    std::vector<std::uint64_t> out;
    const json::value* value = get(key);
    if (value == nullptr) return out;
    if (!value->is_array() || value->get_array().size() != record.layers) {
      wrong(key, fmt::format("{} arrays are needed here, one a layer", record.layers));
      return out;
    }
    for (std::size_t layer = 0; layer < record.layers; ++layer) {
      const json::value& row = value->get_array()[layer];
      const std::string where = fmt::format("{}[{}]", key, layer);
      if (!row.is_array() || row.get_array().size() != record.experts) {
        wrong(where, fmt::format("{} numbers are needed here, one an expert", record.experts));
        return out;
      }
      for (std::size_t e = 0; e < record.experts; ++e)
        out.push_back(
            whole(row.get_array()[e], fmt::format("{}[{}]", where, e), 0, LoadRecord::kPicksMax));
    }
    return out;
  }
  void wrong(std::string_view field, std::string_view what) {
    if (error_) return;
    error_ = Error{ErrorCode::kInvalidArgument,
                   field.empty() ? fmt::format("line {}: {}", number_, what)
                                 : fmt::format("line {}: {}: {}", number_, field, what),
                   std::string(field),
                   {}};
  }
  Status finish() {
    if (!error_ && value_.get_object().size() != known_)
      wrong("", "there are keys that this schema does not have");
    return error_ ? std::unexpected(std::move(*error_)) : Status();
  }

 private:
  std::size_t number_;
  std::size_t known_ = 0;
  json::value value_;
  std::optional<Error> error_;
};

Status read_header(Line line, LoadRecord& record) {
  const std::string schema = line.text("schema");
  if (schema != kSchema)
    line.wrong("schema",
               fmt::format("\"{}\" is needed here; `penstock experts record` writes it", kSchema));
  record.model = line.text("model");
  record.first_layer =
      static_cast<std::uint32_t>(line.whole("first_layer", 0, LoadRecord::kLayersMax));
  record.layers = static_cast<std::uint32_t>(line.whole("layers", 1, LoadRecord::kLayersMax));
  record.experts = static_cast<std::uint32_t>(line.whole("experts", 1, kExpertsMax));
  return line.finish();
}

Status read_window(Line line, LoadRecord& record) {
  RecordedWindow window;
  window.number = line.whole("window", 0, 1'000'000'000);
  window.worker = line.text("worker");
  window.seconds = line.seconds("seconds");
  window.picks = line.matrix("picks", record);
  if (!record.windows.empty() && window.number < record.windows.back().number)
    line.wrong("window", fmt::format("{} after {}: windows go forward", window.number,
                                     record.windows.back().number));
  TRY_STATUS(line.finish());
  record.windows.push_back(std::move(window));
  return {};
}

}  // namespace

std::string print_header(const LoadRecord& record) {
  return json::serialize(json::object{{"schema", kSchema},
                                      {"model", record.model},
                                      {"first_layer", record.first_layer},
                                      {"layers", record.layers},
                                      {"experts", record.experts}});
}

std::string print_window(const LoadRecord& record, const RecordedWindow& window) {
  json::array rows;
  for (std::size_t layer = 0; layer < record.layers; ++layer) {
    const auto begin = window.picks.begin() + static_cast<std::ptrdiff_t>(layer * record.experts);
    rows.emplace_back(json::array(begin, begin + record.experts));
  }
  return json::serialize(json::object{{"window", window.number},
                                      {"worker", window.worker},
                                      {"seconds", window.seconds},
                                      {"picks", std::move(rows)}});
}

Result<LoadRecord> parse_load_record(std::string_view text) {
  LoadRecord record;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (number == 1)
      TRY_STATUS(read_header(Line(line, number), record));
    else if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      TRY_STATUS(read_window(Line(line, number), record));
  }
  if (number == 0) return fail(ErrorCode::kInvalidArgument, "line 1: the file is empty");
  if (record.windows.empty())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("line {}: no windows follow; nothing was recorded", number));
  return record;
}

std::vector<std::vector<double>> windows_of_layer(const LoadRecord& record, std::uint32_t layer) {
  std::vector<std::vector<double>> out;
  std::uint64_t last = 0;
  for (const RecordedWindow& window : record.windows) {
    if (out.empty() || window.number != last) out.emplace_back(record.experts);
    last = window.number;
    for (std::size_t e = 0; e < record.experts; ++e)
      out.back()[e] += static_cast<double>(window.picks[layer * record.experts + e]);
  }
  return out;
}

}  // namespace penstock::experts
