#include "core/dialects/sse_splitter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace penstock::dialects {
namespace {

struct Seen {
  std::string name;
  std::string data;
  bool has_data = false;
  bool operator==(const Seen&) const = default;
};

struct Read {
  std::vector<Seen> events;
  std::string raw;  // of all events
  std::string rest;
};

Read read(std::string_view stream, const std::vector<std::size_t>& cuts) {
  Read out;
  SseSplitter splitter;
  std::size_t at = 0;
  const auto feed = [&](std::size_t end) {
    CHECK(splitter.feed(stream.substr(at, end - at), [&](const SseEvent& e) {
      if (e.has_data) out.events.push_back({std::string(e.name), std::string(e.data), true});
      out.raw.append(e.raw);
    }));
    at = end;
  };
  for (const std::size_t cut : cuts)
    feed(cut);
  feed(stream.size());
  out.rest = splitter.rest();
  return out;
}

struct Fixture {
  std::string_view what;
  std::string stream;
  std::vector<Seen> events;
  std::string rest;
};

// Typed from facts/engines.md section 4 and the engines' documentation.
const std::vector<Fixture>& fixtures() {
  static const std::vector<Fixture> all = {
      {"vLLM, chat",
       "data: "
       "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,"
       "\"delta\":{\"content\":\"na\xC3\xAFve\"}}]}\n\n"
       "data: [DONE]\n\n",
       {{"",
         "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,"
         "\"delta\":{\"content\":\"na\xC3\xAFve\"}}]}",
         true},
        {"", "[DONE]", true}},
       ""},
      {"Messages, named events",
       "event: message_start\ndata: {\"type\":\"message_start\"}\n\n"
       "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
       {{"message_start", "{\"type\":\"message_start\"}", true},
        {"message_stop", "{\"type\":\"message_stop\"}", true}},
       ""},
      {"llama.cpp, pings between events",
       ": ping\n\ndata: {\"a\":1}\n\n: ping\n\ndata: [DONE]\n\n",
       {{"", "{\"a\":1}", true}, {"", "[DONE]", true}},
       ""},
      {"comment without an empty line",
       ": keep-alive\ndata: 1\n\n: keep-alive\n",
       {{"", "1", true}},
       ""},
      {"comment inside an event", "event: x\n: between\ndata: 1\n\n", {{"x", "1", true}}, ""},
      {"CRLF",
       "event: x\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n",
       {{"x", "1", true}, {"", "2", true}},
       ""},
      {"CR",
       "event: x\rdata: 1\r\rdata: 2\r\rdata: 3\r",
       {{"x", "1", true}, {"", "2", true}},
       "data: 3\r"},
      {"mixed line ends", "data: a\r\ndata: b\rdata: c\n\r\n", {{"", "a\nb\nc", true}}, ""},
      {"several data lines",
       "data: {\ndata:  \"a\": 1\ndata: }\n\n",
       {{"", "{\n \"a\": 1\n}", true}},
       ""},
      {"no space, no value, no colon",
       "data:1\n\ndata\n\ndata:\n\ndata\ndata\n\n",
       {{"", "1", true}, {"", "", true}, {"", "", true}, {"", "\n", true}},
       ""},
      {"other fields", "id: 7\nretry: 10\nfoo: bar\ndata: 1\n\n", {{"", "1", true}}, ""},
      {"byte order mark",
       "\xEF\xBB\xBF"
       "data: 1\n\n\xEF\xBB\xBF"
       "data: 2\n\n",
       {{"", "1", true}},
       ""},
      {"an event that never ends",
       "data: 1\n\ndata: {\"half\":",
       {{"", "1", true}},
       "data: {\"half\":"},
      {"a line that looks like data inside data", "data: data: 1\n\n", {{"", "data: 1", true}}, ""},
      {"name after data", "data: 1\nevent: late\n\n", {{"late", "1", true}}, ""},
      {"nothing", "", {}, ""},
  };
  return all;
}

}  // namespace

TEST_CASE("SseSplitter: every fixture, cut at every byte and at every pair of bytes") {
  for (const Fixture& fixture : fixtures()) {
    CAPTURE(fixture.what);
    const auto check = [&](const std::vector<std::size_t>& cuts) {
      const Read got = read(fixture.stream, cuts);
      CHECK(got.events == fixture.events);
      CHECK(got.raw + got.rest == fixture.stream);
      // An LF that was parted from its CR is the only thing a cut may leave behind.
      CHECK((got.rest == fixture.rest || (fixture.rest.empty() && got.rest == "\n")));
    };
    check({});
    for (std::size_t i = 0; i <= fixture.stream.size(); ++i) {
      check({i});
      if (fixture.stream.size() > 80) continue;
      for (std::size_t j = i; j <= fixture.stream.size(); ++j)
        check({i, j});
    }
    std::vector<std::size_t> all(fixture.stream.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = i;
    check(all);
  }
}

TEST_CASE("SseSplitter: an event beyond the limit breaks the stream for good") {
  SseSplitter splitter(10);
  int events = 0;
  const auto count = [&](const SseEvent&) { ++events; };
  CHECK(splitter.feed("data: 1\n\ndata: 2\n\n", count));
  CHECK(events == 2);
  CHECK(splitter.feed("data: 1234", count));
  CHECK_FALSE(splitter.feed("5", count));
  CHECK_FALSE(splitter.feed("\n\n", count));
  CHECK(events == 2);
}

TEST_CASE("SseSplitter: a comment is handed out at its line's end") {
  SseSplitter splitter;
  std::string raw;
  CHECK(splitter.feed(": ping\n", [&](const SseEvent& e) {
    raw.append(e.raw);
    CHECK_FALSE(e.has_data);
  }));
  CHECK(raw == ": ping\n");
  CHECK(splitter.rest().empty());
}

}  // namespace penstock::dialects
