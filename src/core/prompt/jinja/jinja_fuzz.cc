// Any bytes as a template, and as JSON for what it sees: it ends, within its limits, and what it
// makes is covered by runs. Text that came from values stays marked, whatever the template does.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/prompt/jinja/template.h"

using namespace penstock::jinja;  // NOLINT: a fuzzer is one file

namespace {

constexpr std::string_view kValues =
    R"({"messages": [{"role": "user", "content": "\u0001\u0001x é"},
  {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f",
  "arguments": {"a": [1, 2.5, null, true, {"\u0001": "\u0001"}]}}}]}], "tools": null, "n": 3,
  "words": ["b", "A", "\u0001"], "user": {"name": "Zoë", "items": "mine"}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // Up to a zero byte the template, behind it what it sees.
  const std::string_view source = input.substr(0, input.find('\0'));
  const auto made = Template::parse(source);
  if (!made) {
    ENSURE(!made.error().why.empty());
    return 0;
  }
  const std::string_view json =
      source.size() < input.size() ? input.substr(source.size() + 1) : kValues;
  const auto values = from_json(json);
  if (!values || values->dict() == nullptr) return 0;
  const Limits limits{.steps = 20'000, .bytes = 4 << 20, .output_bytes = 1 << 20};
  const auto text = (*made)->render(*values->dict(), std::int64_t{1'700'000'000}, limits);
  if (!text) return 0;
  ENSURE(text->size() <= limits.output_bytes);
  ENSURE(text->runs().empty() == text->empty());
  ENSURE(text->empty() || text->runs().back().end == text->size());
  // The byte 1 stands in values only, unless the template itself spells it.
  if (json.data() != kValues.data() || source.contains('\1') || source.contains('\\')) return 0;
  std::size_t begin = 0;
  for (const Text::Run& run : text->runs()) {
    ENSURE(run.end > begin);
    if (run.origin == Origin::kTemplate)
      ENSURE(!text->view().substr(begin, run.end - begin).contains('\1'));
    begin = run.end;
  }
  return 0;
}
