#include "core/prompt/plain_parser.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace penstock::prompt {

TEST_CASE("a bare answer is all text up to a stop string, however it is cut") {
  struct Case {
    const char* answer;
    std::vector<std::string> stop;
    const char* text;
    const char* met;
  };
  for (const Case& c : {
           Case{"\n<think>a</think><tool_call>{}\n\n",
                {},
                "\n<think>a</think><tool_call>{}\n\n",
                ""},
           Case{"one END two END", {"STOP", "END"}, "one ", "END"},
           Case{"EN EN", {"END"}, "EN EN", ""},
           Case{"aab", {"ab", "aab"}, "", "aab"},
           Case{"END", {"END"}, "", "END"},
           Case{"", {"x"}, "", ""},
       }) {
    CAPTURE(c.answer);
    const std::string answer = c.answer;
    for (std::size_t step = 1; step <= answer.size() + 1; ++step) {
      CAPTURE(step);
      PlainParser parser(c.stop);
      std::vector<OutputEvent> events;
      for (std::size_t at = 0; at < answer.size(); at += step)
        parser.feed(answer.substr(at, step), events);
      CHECK(parser.stopped() == (c.met[0] != '\0'));
      parser.finish(events);
      std::string text;
      for (const OutputEvent& event : events) {
        CHECK(event.kind == OutputEvent::Kind::kContent);
        CHECK(!event.text.empty());
        text += event.text;
      }
      CHECK(text == c.text);
      CHECK(parser.stop_string() == c.met);
      CHECK(!parser.saw_tool_call());
    }
  }
}

}  // namespace penstock::prompt
