// The table of edges, and the document that shows it (UPDATE=1 rewrites its table).
#include "core/handoff/edges.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/handoff/reason.h"

namespace penstock::handoff {
namespace {

constexpr const char* kDocument = "docs/protocol/handoff.md";
constexpr std::string_view kBegin = "<!-- edges -->\n";
constexpr std::string_view kEnd = "<!-- /edges -->\n";

std::string table() {
  std::string rows = "| edge | leads to | |\n|---|---|---|\n";
  for (const Edge& edge : edges())
    rows += fmt::format("| `{}` | {} | {} |\n", name(edge), name(edge.to),
                        edge.fault == Fault::kYes ? "fault" : "");
  return rows;
}

std::string document() {
  std::ostringstream text;
  text << std::ifstream(kDocument).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("names of edges are unique, and every event and state is on one") {
  std::set<std::string> names;
  std::set<State> states;
  std::set<Event> events;
  for (const Edge& edge : edges()) {
    CHECK(names.insert(name(edge)).second);
    states.insert({edge.from, edge.to});
    events.insert(edge.event);
  }
  CHECK(states.size() == kStates);
  CHECK(events.size() == kEvents);
}

TEST_CASE("taking an edge counts it and leads on") {
  Hits hits;
  CHECK(hits.take(State::kNone, Event::kAnnounce) == State::kAnnounced);
  CHECK(hits.take(State::kAnnounced, Event::kPublish) == State::kOpen);
  CHECK(hits.take(State::kNone, Event::kAnnounce) == State::kAnnounced);
  CHECK(hits.of(State::kNone, Event::kAnnounce) == 2);
  CHECK(hits.of(State::kOpen, Event::kAnnounce) == 0);
  CHECK(hits.of(0) == 2);
  CHECK(name(edges()[0]) == "owner.none.announce");
}

TEST_CASE("the document shows every edge, event and reason") {
  std::string text = document();
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find(kEnd);
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  if (std::getenv("UPDATE") != nullptr) {
    text.replace(begin + kBegin.size(), end - begin - kBegin.size(), table());
    std::ofstream(kDocument) << text;
    text = document();
  }
  CHECK(text.find(std::string(kBegin) + table() + std::string(kEnd)) != std::string::npos);
  for (const Edge& edge : edges()) {
    CAPTURE(name(edge.event));
    CHECK(text.find(fmt::format("\n| `{}` | {} |", name(edge.event),
                                side(edge.event) == Side::kOwner ? "owner" : "reader")) !=
          std::string::npos);
  }
  std::string folded = text;
  for (char& c : folded)
    if (c == '\n') c = ' ';
  for (std::size_t i = 0; i < kReasons; ++i) {
    const std::string reason = fmt::format(" {} {}", i, kReasonNames[i]);
    CAPTURE(reason);
    CHECK(folded.find(reason) != std::string::npos);
  }
}

}  // namespace penstock::handoff
