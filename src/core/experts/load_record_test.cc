#include "core/experts/load_record.h"

#include <doctest/doctest.h>

namespace penstock::experts {
namespace {

LoadRecord small() {
  LoadRecord record{"nano", 1, 2, 3, {}};
  record.windows.push_back({0, "a", 1.0, {1, 2, 3, 4, 5, 6}});
  record.windows.push_back({0, "b", 1.5, {10, 0, 0, 0, 0, LoadRecord::kPicksMax}});
  record.windows.push_back({2, "a", 1.0, {0, 0, 0, 7, 7, 7}});
  return record;
}

std::string print(const LoadRecord& record) {
  std::string text = print_header(record) + "\n";
  for (const RecordedWindow& window : record.windows)
    text += print_window(record, window) + "\n";
  return text;
}

}  // namespace

TEST_CASE("a record reads back equal; windows are summed over workers") {
  const auto back = parse_load_record(print(small()));
  REQUIRE(back);
  CHECK(*back == small());
  const auto layer = windows_of_layer(*back, 0);
  REQUIRE(layer.size() == 2);
  CHECK(layer[0] == std::vector<double>{11, 2, 3});
  CHECK(layer[1] == std::vector<double>{0, 0, 0});
  CHECK(windows_of_layer(*back, 1)[1] == std::vector<double>{7, 7, 7});
}

TEST_CASE("bad records are refused with line and field") {
  const std::string header =
      R"({"schema":"penstock-expert-loads/1","model":"m","first_layer":0,"layers":1,"experts":2})"
      "\n";
  const std::string window = R"({"window":3,"worker":"w","seconds":1,"picks":[[1,2]]})"
                             "\n";
  REQUIRE(parse_load_record(header + window + "\n"));
  const std::pair<std::string, const char*> cases[] = {
      {"", "line 1: the file is empty"},
      {header, "line 1: no windows follow"},
      {"nonsense", "line 1: no JSON"},
      {"[1]", "line 1: an object is needed here"},
      {R"({"schema":"other"})", "line 1: schema: \"penstock-expert-loads/1\" is needed"},
      {R"({"schema":"penstock-expert-loads/1","model":"m","first_layer":0,"layers":1})",
       "line 1: experts: missing"},
      {R"({"schema":"penstock-expert-loads/1","model":"m","first_layer":0,"layers":0,"experts":2})",
       "line 1: layers: a whole number from 1 to 1024"},
      {header + R"({"window":3,"worker":"w","seconds":1,"picks":[[1,2]],"more":1})",
       "line 2: there are keys"},
      {header + R"({"window":3,"worker":"w","seconds":0,"picks":[[1,2]]})", "line 2: seconds: "},
      {header + R"({"window":3,"worker":4,"seconds":1,"picks":[[1,2]]})",
       "line 2: worker: a string"},
      {header + R"({"window":3,"worker":"w","seconds":1,"picks":[[1,2],[3,4]]})",
       "line 2: picks: 1 arrays are needed"},
      {header + R"({"window":3,"worker":"w","seconds":1,"picks":[[1]]})",
       "line 2: picks[0]: 2 numbers are needed"},
      {header + R"({"window":3,"worker":"w","seconds":1,"picks":[[1,-2]]})",
       "line 2: picks[0][1]: a whole number from 0 to"},
      {header + R"({"window":3,"worker":"w","seconds":1,"picks":[[1,2.5]]})",
       "line 2: picks[0][1]: a whole number"},
      {header + window + R"({"window":2,"worker":"w","seconds":1,"picks":[[1,2]]})",
       "line 3: window: 2 after 3"},
  };
  for (const auto& [text, reason] : cases) {
    CAPTURE(text);
    const auto parsed = parse_load_record(text);
    REQUIRE(!parsed);
    CHECK(parsed.error().code == ErrorCode::kInvalidArgument);
    INFO(parsed.error().message);
    CHECK(parsed.error().message.starts_with(reason));
  }
}

}  // namespace penstock::experts
