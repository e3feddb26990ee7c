#include "core/prompt/deepseek_parser.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace penstock::prompt {
namespace {

struct Case {
  const char* name;
  bool reasoning;
  ToolMarkup tools;
  std::vector<std::string> stop;
  std::string answer;
  std::string folded;  // events, one a line, neighbours of one kind joined
};

const std::string kCall =
    "Let me look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
    "<｜DSML｜parameter name=\"city\" string=\"true\">Oslo \"x\"\n</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

const std::string kBegin =
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
    "string=\"false\">";

const std::vector<Case> kCases = {
    {"plain text keeps every byte",
     false,
     ToolMarkup::kParse,
     {},
     "a < b\n\n<｜DS x\n",
     "content a < b||<｜DS x|\n"},
    {"one leading newline goes", false, ToolMarkup::kParse, {}, "\nhi", "content hi\n"},
    {"reasoning then content",
     true,
     ToolMarkup::kParse,
     {},
     "because\n\n</think>\n\nyes",
     "reasoning because\ncontent |yes\n"},
    {"a stray end of thinking is dropped",
     false,
     ToolMarkup::kParse,
     {},
     "a</think>b",
     "content ab\n"},
    {"tool calls",
     false,
     ToolMarkup::kParse,
     {},
     kCall,
     "content Let me look.\ncall get_weather\n"
     "arguments {\"city\": \"Oslo \\\"x\\\"\\n\", \"days\": [1, 2]}\nend\n"
     "call now\narguments {}\nend\n"},
    {"V4.1 spelling",
     false,
     ToolMarkup::kParse,
     {},
     "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" "
     "string=\"false\">7"
     "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>trailing",
     "call f\narguments {\"n\": 7}\nend\n"},
    {"without tools the markup is text",
     false,
     ToolMarkup::kAsText,
     {},
     "<｜DSML｜tool_calls>",
     "content <｜DSML｜tool_calls>\n"},
    {"a call cut short is closed",
     false,
     ToolMarkup::kParse,
     {},
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
     "string=\"true\">ab",
     "call f\narguments {\"n\": \"ab\"}\nend\n"},
    {"a value that is no JSON becomes a string, whole or cut short",
     false,
     ToolMarkup::kParse,
     {},
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
     "string=\"false\">so \"x\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"m\" "
     "string=\"false\">[1, 2",
     "call f\narguments {\"n\": \"so \\\"x\\\"\", \"m\": \"[1, 2\"}\nend\n"},
    {"a JSON value goes on over a closing tag in its strings",
     false,
     ToolMarkup::kParse,
     {},
     kBegin +
         "[\"</｜DSML｜parameter>\\\"</｜DSML｜\", 1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n" +
         "</｜DSML｜tool_calls>",
     "call f\narguments {\"n\": [\"</｜DSML｜parameter>\\\"</｜DSML｜\", 1]}\nend\n"},
    {"a string that is never closed ends with its tag",
     false,
     ToolMarkup::kParse,
     {},
     kBegin + "5\" pipe</｜DSML｜parameter>\n<｜DSML｜parameter name=\"m\" string=\"false\">2" +
         "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "call f\narguments {\"n\": \"5\\\" pipe\", \"m\": 2}\nend\n"},
    {"and so it does where the tags follow one another",
     false,
     ToolMarkup::kParse,
     {},
     kBegin + "\"a</｜DSML｜parameter><｜DSML｜parameter name=\"m\" string=\"false\">2" +
         "</｜DSML｜parameter></｜DSML｜invoke><｜DSML｜invoke name=\"g\"></｜DSML｜invoke>",
     "call f\narguments {\"n\": \"\\\"a\", \"m\": 2}\nend\ncall g\narguments {}\nend\n"},
    {"cut short in such a string",
     false,
     ToolMarkup::kParse,
     {},
     kBegin + "[\"</｜DSML｜parameter>",
     "call f\narguments {\"n\": \"[\\\"\"}\nend\n"},
    {"stop strings match over pieces",
     false,
     ToolMarkup::kParse,
     {"END", "\n\n"},
     "one EN two END three",
     "content one EN two \n"},
    {"a stop of newlines",
     false,
     ToolMarkup::kParse,
     {"\n\n"},
     "one\ntwo\n\nthree",
     "content one|two\n"},
    {"no stop inside reasoning",
     true,
     ToolMarkup::kParse,
     {"x"},
     "axb</think>cxd",
     "reasoning axb\ncontent c\n"},
    {"of JSON or calls: the strings of JSON spell what they like",
     true,
     ToolMarkup::kFirstOnly,
     {},
     "hm\n</think>\n {\"a\": \"</think><｜DSML｜tool_calls>\\n<｜DSML｜invoke name=\"}",
     "reasoning hm\n"
     "content  {\"a\": \"</think><｜DSML｜tool_calls>\\n<｜DSML｜invoke name=\"}\n"},
    {"of JSON or calls: calls",
     true,
     ToolMarkup::kFirstOnly,
     {},
     "hm</think>\n\n" + kBegin + "1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "reasoning hm\ncall f\narguments {\"n\": 1}\nend\n"},
    {"of JSON or calls: what only looks like a mark",
     false,
     ToolMarkup::kFirstOnly,
     {"END"},
     "<｜DSM<｜DSML｜tool_calls>END",
     "content <｜DSM<｜DSML｜tool_calls>\n"},
    {"an unfinished marker at the end is text",
     false,
     ToolMarkup::kParse,
     {"END"},
     "so EN",
     "content so EN\n"},
};

std::string fold(const std::vector<OutputEvent>& events) {
  std::string out;
  const char* open = nullptr;
  for (const OutputEvent& event : events) {
    const char* label = "";
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        label = "reasoning ";
        break;
      case OutputEvent::Kind::kContent:
        label = "content ";
        break;
      case OutputEvent::Kind::kToolBegin:
        label = "call ";
        break;
      case OutputEvent::Kind::kToolArguments:
        label = "arguments ";
        break;
      case OutputEvent::Kind::kToolEnd:
        label = "end";
        break;
    }
    const bool joins = open != nullptr && std::string_view(open) == label &&
                       event.kind != OutputEvent::Kind::kToolBegin;
    if (!joins) {
      if (open != nullptr) out += '\n';
      out += label;
    }
    for (const char c : event.text)
      out += c == '\n' ? '|' : c;
    open = label;
  }
  if (open != nullptr) out += '\n';
  return out;
}

std::string parse(const Case& c, const std::vector<std::string>& pieces) {
  DeepSeekParser parser(c.reasoning, c.tools, c.stop);
  std::vector<OutputEvent> all;
  for (const std::string& piece : pieces)
    parser.feed(piece, all);
  parser.finish(all);
  return fold(all);
}

}  // namespace

TEST_CASE("answers are read alike however they are cut") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    CHECK(parse(c, {c.answer}) == c.folded);
    std::vector<std::string> bytes;
    for (const char byte : c.answer)
      bytes.emplace_back(1, byte);
    CHECK(parse(c, bytes) == c.folded);
    for (std::size_t cut = 1; cut < c.answer.size(); ++cut) {
      CAPTURE(cut);
      CHECK(parse(c, {c.answer.substr(0, cut), c.answer.substr(cut)}) == c.folded);
    }
  }
}

TEST_CASE("text is released as soon as it is certain") {
  DeepSeekParser parser(false, ToolMarkup::kParse, {"END"});
  std::vector<OutputEvent> events;
  parser.feed("hello E", events);
  REQUIRE(events.size() == 1);
  CHECK(events[0].text == "hello ");
  parser.feed("ND", events);
  CHECK(events.size() == 1);
  CHECK(parser.stopped());
  CHECK(parser.stop_string() == "END");
}

}  // namespace penstock::prompt
