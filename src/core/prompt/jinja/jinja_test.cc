// The language against its cases, and against Jinja itself where python3-jinja2 is installed.
#include <unistd.h>
#include <array>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "core/prompt/jinja/lexer.h"
#include "core/prompt/jinja/template.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::jinja {
namespace {

// What the templates of the cases see.
constexpr std::string_view kVariables = R"({"name": "Ann", "count": 3, "price": 2.5, "flag": true,
  "nothing": null, "words": ["b", "A", "c"], "numbers": [3, 1, 2],
  "user": {"name": "Zoë", "items": "mine", "tags": ["x", "y"], "age": 41},
  "people": [{"n": "a", "v": 1}, {"n": "B", "v": 2}, {"n": "c"}], "text": "  two words \n",
  "deep": {"a": {"b": [1, {"c": "d"}]}}, "html": "<b>&\"'", "unicode": "Äö ß é 你好 🎉",
  "big": 123456789012345678901234567890})";
constexpr std::int64_t kNow = 1'700'000'000;

Dict variables_of(std::string_view json) {
  const auto value = from_json(json);
  REQUIRE(value);
  REQUIRE(value->dict() != nullptr);
  return *value->dict();
}

std::string described(const Failure& failure) {
  return (failure.refused ? "refused, line " : "line ") + std::to_string(failure.line) + ": " +
         failure.why;
}

Fallible<Text> rendered(std::string_view source, const Dict& variables) {
  const auto made = Template::parse(source);
  if (!made) return std::unexpected(made.error());
  return (*made)->render(variables, kNow, Limits());
}

// Text that came from values stands in ‹›.
std::string shown(const Fallible<Text>& text) {
  if (!text) return described(text.error());
  std::string out;
  std::size_t begin = 0;
  for (const Text::Run& run : text->runs()) {
    const auto part = text->view().substr(begin, run.end - begin);
    begin = run.end;
    out += run.origin == Origin::kValue ? "‹" + std::string(part) + "›" : std::string(part);
  }
  std::string marked;
  for (const char c : out)
    marked += c == '\n' ? "↵\n" : std::string(1, c);
  return marked;
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Compared {
  std::string source;
  std::string variables;  // JSON
};

// What Jinja makes of them; empty when it isn't installed.
boost::json::array by_jinja(const std::vector<Compared>& cases) {
  std::string input;
  for (const Compared& one : cases) {
    input += input.empty() ? '[' : ',';
    input += R"({"source":)" + boost::json::serialize(boost::json::value(one.source)) +
             R"(,"variables":)" + one.variables + '}';
  }
  const auto path = std::filesystem::temp_directory_path() /
                    ("penstock-jinja-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path, std::ios::binary) << input << ']';
  const std::string command =
      "python3 tools/jinja_reference.py < '" + path.string() + "' 2>/dev/null";
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 65536> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), count);
  const int status = ::pclose(pipe);
  std::filesystem::remove(path);
  if (status != 0) return {};
  return boost::json::parse(output).as_array();
}

std::vector<Compared> language_cases() {
  std::vector<Compared> cases;
  for (const auto& block :
       test::split_at_lines(file_text("tests/cases/prompt/jinja_language.txt"), "===="))
    cases.push_back({test::parse_text_case(block).input, std::string(kVariables)});
  return cases;
}

// Every template of the folder on every conversation.
std::vector<Compared> template_cases() {
  const auto conversations =
      boost::json::parse(file_text("tests/cases/prompt/template_conversations.json")).as_array();
  std::vector<Compared> cases;
  for (const auto& entry : std::filesystem::directory_iterator("tests/cases/prompt/templates")) {
    for (const auto& conversation : conversations)
      cases.push_back({file_text(entry.path()), boost::json::serialize(conversation)});
  }
  return cases;
}

}  // namespace

TEST_CASE("the language of templates") {
  const Dict variables = variables_of(kVariables);
  test::run_cases("prompt/jinja_language.txt",
                  [&](const std::string& input) { return shown(rendered(input, variables)); });
}

TEST_CASE("templates give what Jinja gives") {
  std::vector<Compared> cases = language_cases();
  const std::size_t language = cases.size();
  for (Compared& one : template_cases())
    cases.push_back(std::move(one));
  const auto reference = by_jinja(cases);
  if (reference.empty()) {
    MESSAGE("skipped: needs python3 with python3-jinja2");
    return;
  }
  REQUIRE(reference.size() == cases.size());
  std::size_t texts = 0;
  std::size_t unsupported = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].source);
    CAPTURE(cases[i].variables);
    const auto ours = rendered(cases[i].source, variables_of(cases[i].variables));
    const auto& theirs = reference[i].as_object();
    if (const auto* text = theirs.if_contains("text")) {
      const std::string said = ours ? ours->bytes() : described(ours.error());
      if (i < language && !ours) {
        ++unsupported;
        continue;
      }
      CHECK(said == std::string(text->as_string()));
      ++texts;
    } else {
      INFO("Jinja says: ", std::string(theirs.at("error").as_string()));
      CHECK(!ours);
    }
  }
  // A filter that is unknown and never reached, and a macro inside of a loop.
  CHECK(unsupported == 2);
  std::cout << "jinja: " << texts << " texts equal, " << cases.size() - texts - unsupported
            << " failures on both sides\n";
}

TEST_CASE("a run ends") {
  const Dict variables = variables_of(kVariables);
  const auto why = [&](std::string_view source, const Limits& limits) {
    const auto made = Template::parse(source);
    REQUIRE(made);
    const auto text = (*made)->render(variables, {}, limits);
    return text ? "made " + std::to_string(text->size()) : described(text.error());
  };
  const Limits small{.steps = 10'000, .bytes = 1 << 20, .output_bytes = 10'000};
  CHECK(why("{% for i in range(1000000) %}{% endfor %}", small).contains("too much text"));
  CHECK(why("{% for i in range(9000) %}{% set x = i %}{% endfor %}", small)
            .contains("more than 10000 steps"));
  CHECK(why("{% for i in range(99) %}{{ 'x' * 999 }}{% endfor %}", small)
            .contains("larger than 10000 bytes"));
  CHECK(why("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}"
            "{% endfor %}",
            small)
            .contains("too much text"));
  CHECK(why("{{ 'x' * 9999999999 }}", small).contains("too much text"));
  CHECK(why("{{ ('x' * 999)|replace('', 'y' * 9999)|length }}", small).contains("too much text"));
  CHECK(why("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Limits())
            .contains("statements, expressions and macros in one another"));
  // A value that holds itself over and over is small and would print for ever.
  CHECK(why("{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}"
            "{% endfor %}{{ n.l }}",
            Limits())
            .contains("too "));
  CHECK(why("{% set n = namespace(l=[1]) %}{% for i in range(200) %}{% set n.l = [n.l] %}"
            "{% endfor %}",
            Limits())
            .contains("deep"));
  CHECK(!Template::parse("{{ " + std::string(100'000, '(') + " }}"));
  CHECK(!Template::parse("{{ " + std::string(100'000, '-') + "1 }}"));
  std::string nested;
  for (int i = 0; i < 1000; ++i)
    nested += "{% if true %}";
  CHECK(!Template::parse(nested));
  CHECK(!Template::parse(std::string(kSourceBytesMax + 1, 'x')));
}

}  // namespace penstock::jinja
