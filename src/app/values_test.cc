#include "app/values.h"

#include "app/restart_policy.h"
#include "app/suggest.h"
#include "app/text_layout.h"

#include <doctest/doctest.h>
#include <array>

namespace penstock {

TEST_CASE("sizes") {
  struct Case {
    std::string_view text;
    std::int64_t bytes;  // -1: refused
  };
  for (const auto& c : {
           Case{"0", 0},
           Case{"4096", 4096},
           Case{"64KiB", 65536},
           Case{"64 KiB", 65536},
           Case{"1.5MiB", 1572864},
           Case{"8GiB", std::int64_t{8} << 30},
           Case{"10MB", 10'000'000},
           Case{"7B", 7},
           Case{"", -1},
           Case{"GiB", -1},
           Case{"-1", -1},
           Case{"-0", -1},
           Case{"1e9", -1},
           Case{"nan", -1},
           Case{"inf", -1},
           Case{"8gib", -1},
           Case{"8GiB ", -1},
           Case{"8  GiB", -1},
           Case{"99999999999TiB", -1},
       }) {
    const auto parsed = parse_bytes(c.text);
    CHECK_MESSAGE((parsed ? parsed->value : -1) == c.bytes, c.text);
  }
  for (const std::int64_t amount : {0LL, 1LL, 1023LL, 1024LL, 1000LL, 3LL << 30, 123456789LL})
    CHECK(parse_bytes(format_bytes(Bytes(amount))) == Bytes(amount));
  CHECK(format_bytes(Bytes(3 << 20)) == "3MiB");
  CHECK(describe_bytes(Bytes(0)) == "0 B");
  CHECK(describe_bytes(Bytes(3'000'000'000)) == "2.79 GiB");
  CHECK(describe_bytes(Bytes(std::int64_t{300} << 20)) == "300 MiB");
}

TEST_CASE("times") {
  CHECK(parse_duration("30s") == std::chrono::seconds(30));
  CHECK(parse_duration("1.5min") == std::chrono::seconds(90));
  CHECK(parse_duration("250ms") == std::chrono::milliseconds(250));
  CHECK(parse_duration("0") == Duration::zero());
  for (const auto* bad : {"", "30", "30 sec", "s", "-1s", "1e3s", "99999999999d"})
    CHECK_MESSAGE(!parse_duration(bad), bad);
  for (const auto* text : {"0s", "100ms", "90s", "10min", "2h", "1d", "7us"})
    CHECK(format_duration(parse_duration(text).value()) == text);
}

TEST_CASE("counts, numbers and switches take the whole text") {
  CHECK(parse_count("-12") == -12);
  for (const auto* bad : {"", "1x", " 1", "1.0", "99999999999999999999"})
    CHECK(!parse_count(bad));
  CHECK(parse_number("0.5") == 0.5);
  for (const auto* bad : {"", "x", "1e999", "nan", "inf", "1 "})
    CHECK(!parse_number(bad));
  CHECK(parse_switch("true") == true);
  CHECK(!parse_switch("yes"));
}

TEST_CASE("assignments") {
  CHECK(parse_assignment("nano=models/a=b") == Assignment{"nano", "models/a=b"});
  CHECK(parse_assignment("org/model:v1.2=/x") == Assignment{"org/model:v1.2", "/x"});
  for (const auto* bad : {"", "nano", "nano=", "=dir", "na no=dir", "n\x01=dir"})
    CHECK_MESSAGE(!parse_assignment(bad), bad);
  CHECK(!is_assignment_name(std::string(129, 'x')));
}

TEST_CASE("the nearest word") {
  constexpr std::array<std::string_view, 4> words = {"port", "host", "kv-memory", "json"};
  CHECK(edit_distance("port", "prot") == 1);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(nearest("prot", words) == "port");
  CHECK(nearest("kvmemory", words) == "kv-memory");
  CHECK(nearest("jsn", words) == "json");
  CHECK(nearest("zzzzzz", words).empty());
  CHECK(nearest(std::string(1 << 20, 'p'), words).empty());
  CHECK(did_you_mean("hots", words, "--") == "; did you mean --host?");
}

TEST_CASE("columns and wrapping") {
  CHECK(wrap("aa bb cc", 5, 0) == "aa bb\ncc");
  CHECK(wrap("aa bb cc", 7, 2) == "aa bb\n  cc");
  CHECK(wrap("longerthanwidth x", 5, 0) == "longerthanwidth\nx");
  CHECK(table({{"a", "1"}, {"\xC3\xA9t\xC3\xA9", "22"}}, {false, true}) ==
        "a     1\n\xC3\xA9t\xC3\xA9  22\n");
}

TEST_CASE("restarts come later and later, and start over after a healthy life") {
  using std::chrono::milliseconds;
  RestartPolicy policy;
  std::vector<Duration> delays;
  for (int i = 0; i < 9; ++i)
    delays.push_back(policy.delay_after(milliseconds(5)));
  CHECK(delays[0] == milliseconds(100));
  CHECK(delays[1] == milliseconds(200));
  CHECK(delays[6] == milliseconds(6400));
  CHECK(delays[7] == milliseconds(10000));
  CHECK(delays[8] == milliseconds(10000));
  CHECK(policy.delay_after(std::chrono::seconds(30)) == milliseconds(100));
  CHECK(policy.delay_after(std::chrono::seconds(29)) == milliseconds(200));
}

}  // namespace penstock
