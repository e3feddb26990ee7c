// Masks against the matcher, token by token; documents drawn through masks against a validator that
// shares no code with the grammar.
#include "core/grammar/token_mask.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "core/grammar/json_schema.h"

namespace penstock::grammar {
namespace {

namespace json = boost::json;

std::shared_ptr<const Vocabulary> test_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b)
      tokens.emplace_back(1, static_cast<char>(b));
    const std::vector<std::string> parts{"\"",  "\",", "\":", "{",    "}",        "[",  "]",  ",",
                                         " ",   "\n",  "  ",  "a",    "name",     "id", "x",  "1",
                                         "20",  "-",   ".5",  "e",    "true",     "ä",  "😀", "\\n",
                                         "\\u", "\\",  "nul", "l",    "false",    "tr", "ue", ": ",
                                         "{\"", "\"}", "],",  "\xF0", "\x9F\x98", "00", "k",  "v"};
    std::set<std::string> more;
    Rng rng(7);
    for (int i = 0; i < 1500; ++i) {
      std::string token;
      for (std::uint64_t n = 1 + rng.below(4); n > 0; --n)
        token += parts[rng.below(parts.size())];
      if (token.size() > 1) more.insert(token);
    }
    more.insert(std::string(100, 'a'));
    more.insert(std::string(120, ' '));
    tokens.insert(tokens.end(), more.begin(), more.end());
    tokens.emplace_back();  // special
    auto built = Vocabulary::build(std::move(tokens));
    REQUIRE(built.has_value());
    return *built;
  }();
  return vocabulary;
}

// ------------------------------------------------------------------- an independent validator

std::size_t code_points_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool has_type(const json::value& v, std::string_view type) {
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (!v.is_number()) return false;
  return type == "number" || std::floor(v.to_number<double>()) == v.to_number<double>();
}

bool valid(const json::value& schema, const json::value& v, const json::value& root) {
  if (schema.is_bool()) return schema.get_bool();
  const auto& s = schema.get_object();
  if (s.contains("$ref")) {
    const std::string ref(s.at("$ref").get_string());
    return valid(ref == "#" ? root : root.at_pointer(ref.substr(1)), v, root);
  }
  if (const auto* any = s.if_contains("anyOf")) {
    return std::ranges::any_of(any->get_array(), [&](const auto& b) { return valid(b, v, root); });
  }
  if (const auto* values = s.if_contains("enum"))
    return std::ranges::find(values->get_array(), v) != values->get_array().end();
  if (const auto* type = s.if_contains("type");
      type != nullptr && !has_type(v, std::string_view(type->get_string())))
    return false;
  const auto number = [&](const char* word, double otherwise) {
    const auto* value = s.if_contains(word);
    return value != nullptr ? value->to_number<double>() : otherwise;
  };
  if (v.is_number()) {
    const double n = v.to_number<double>();
    return n >= number("minimum", -HUGE_VAL) && n <= number("maximum", HUGE_VAL);
  }
  if (v.is_string()) {
    const auto n = static_cast<double>(code_points_of(std::string_view(v.get_string())));
    return n >= number("minLength", 0) && n <= number("maxLength", HUGE_VAL);
  }
  if (const auto* array = v.if_array()) {
    const auto n = static_cast<double>(array->size());
    if (n < number("minItems", 0) || n > number("maxItems", HUGE_VAL)) return false;
    const auto* items = s.if_contains("items");
    return items == nullptr ||
           std::ranges::all_of(*array, [&](const auto& item) { return valid(*items, item, root); });
  }
  if (const auto* object = v.if_object()) {
    const auto* properties = s.if_contains("properties");
    if (const auto* required = s.if_contains("required")) {
      for (const auto& name : required->get_array())
        if (!object->contains(name.get_string())) return false;
    }
    const auto* additional = s.if_contains("additionalProperties");
    for (const auto& [key, member] : *object) {
      const auto* own = properties != nullptr ? properties->get_object().if_contains(key) : nullptr;
      if (own == nullptr) own = additional;
      if (own != nullptr && !valid(*own, member, root)) return false;
    }
  }
  return true;
}

// ------------------------------------------------------------------------------ random schemas

json::value random_schema(Rng& rng, int depth) {
  switch (rng.below(depth > 0 ? 10 : 6)) {
    case 0:
      return {{"type", "integer"},
              {"minimum", -static_cast<int>(rng.below(50))},
              {"maximum", static_cast<int>(rng.below(2000))}};
    case 1:
      return {{"type", "string"}, {"minLength", rng.below(4)}, {"maxLength", 3 + rng.below(200)}};
    case 2:
      return {{"enum", {"a", "ab", 1, nullptr, "name\n", {{"k", {1, "v"}}}}}};
    case 3:
      return {{"type", "number"}};
    case 4:
      return {{"type", "boolean"}};
    case 5:
      return {{"type", "string"}};
    case 6:
    case 7: {
      json::object properties;
      json::array required;
      for (const char* name : {"name", "id", "k\"ä", "v", "x"}) {
        if (rng.below(3) == 0) continue;
        properties.emplace(name, random_schema(rng, depth - 1));
        if (rng.below(2) == 0) required.emplace_back(name);
      }
      json::object out{{"type", "object"}, {"properties", properties}, {"required", required}};
      if (rng.below(3) > 0) out["additionalProperties"] = false;
      return out;
    }
    case 8: {
      const std::uint64_t min = rng.below(3);
      return {{"type", "array"},
              {"items", random_schema(rng, depth - 1)},
              {"minItems", min},
              {"maxItems", min + rng.below(3)}};
    }
    default:
      return {{"anyOf",
               {random_schema(rng, depth - 1),
                random_schema(rng, depth - 1),
                {{"type", "array"}, {"items", {{"$ref", "#"}}}}}}};
  }
}

// The value as one spelling of a document in declared order: what the writer of a client prints.
std::vector<TokenId> allowed_tokens(std::span<const std::uint64_t> bits) {
  std::vector<TokenId> out;
  for (std::size_t w = 0; w < bits.size(); ++w) {
    for (std::uint64_t rest = bits[w]; rest != 0; rest &= rest - 1)
      out.push_back(static_cast<TokenId>(w * 64 + static_cast<unsigned>(__builtin_ctzll(rest))));
  }
  return out;
}

TEST_CASE("a mask allows exactly the tokens whose bytes the matcher takes") {
  const auto vocabulary = test_vocabulary();
  MaskMaker maker(vocabulary);
  std::vector<std::uint64_t> bits(maker.words());
  Rng rng(11);
  std::size_t compared = 0;
  for (int round = 0; round < 60; ++round) {
    const json::value schema = random_schema(rng, 3);
    const std::string text = json::serialize(schema);
    INFO(text);
    const auto grammar = json_schema_grammar(text);
    if (!grammar) continue;  // nothing finite: every branch calls for itself
    Matcher matcher(*grammar);
    GrammarMasks known;
    for (int step = 0; step < 60; ++step) {
      maker.mask(matcher, known, bits);
      for (TokenId id = 0; id < vocabulary->size(); ++id) {
        const bool bit = (bits[id / 64] >> (id % 64) & 1) != 0;
        Matcher ahead = matcher;
        const bool taken = !vocabulary->bytes(id).empty() && ahead.advance(vocabulary->bytes(id));
        if (bit != taken) FAIL(fmt::format("token {:?} at step {}", vocabulary->bytes(id), step));
        ++compared;
      }
      const auto tokens = allowed_tokens(bits);
      if (tokens.empty()) {
        CHECK(matcher.complete());
        break;
      }
      REQUIRE(matcher.advance(vocabulary->bytes(tokens[rng.below(tokens.size())])));
    }
  }
  CHECK(compared > 1'000'000);
}

TEST_CASE("documents drawn through masks are valid, and valid documents are taken byte by byte") {
  const auto vocabulary = test_vocabulary();
  MaskMaker maker(vocabulary);
  std::vector<std::uint64_t> bits(maker.words());
  Rng rng(5);
  int finished = 0;
  for (int round = 0; round < 300; ++round) {
    const json::value schema = random_schema(rng, 3);
    const std::string text = json::serialize(schema);
    INFO(text);
    const auto grammar = json_schema_grammar(text);
    if (!grammar) continue;
    Matcher matcher(*grammar);
    GrammarMasks known;
    std::string document;
    bool done = false;
    // From some length on the shortest token that closes something is taken, so that walks end.
    for (int step = 0; step < 400 && !done; ++step) {
      maker.mask(matcher, known, bits);
      auto tokens = allowed_tokens(bits);
      if (matcher.complete() && (tokens.empty() || step > 20 || rng.below(4) == 0)) {
        done = true;
        break;
      }
      REQUIRE_FALSE(tokens.empty());
      TokenId token = tokens[rng.below(tokens.size())];
      if (step > 20) {
        for (const char end : {'}', ']', '"', 'e', 'l', '0'}) {
          if (std::ranges::find(tokens, static_cast<TokenId>(end)) != tokens.end()) {
            token = static_cast<TokenId>(end);
            break;
          }
        }
      }
      document += vocabulary->bytes(token);
      const Reader before = matcher.reader();
      REQUIRE(matcher.advance(vocabulary->bytes(token)));
      const Reader after = matcher.reader();
      matcher.restore(before);  // a step taken back leaves no trace
      REQUIRE(matcher.advance(vocabulary->bytes(token)));
      CHECK(matcher.reader().positions == after.positions);
    }
    if (!done) continue;
    ++finished;
    INFO(document);
    json::error_code error;
    const json::value value = json::parse(document, error);
    REQUIRE_FALSE(error);
    CHECK(valid(schema, value, schema));
    CHECK(is_valid_utf8(document));
    // One byte at a time, in a fresh matcher: the state is what the bytes make it.
    Matcher again(*grammar);
    for (const char byte : document)
      REQUIRE(again.advance_symbol(static_cast<std::uint8_t>(byte)));
    CHECK(again.complete());
    CHECK(again.reader().positions.size() == matcher.reader().positions.size());
    // Another spelling: without white space, members as they came.
    Matcher compact(*grammar);
    bool canonical = true;  // numbers are printed anew, so only documents without fractions
    for (const char c : document)
      canonical = canonical && c != '.' && c != 'e' && c != 'E' && c != '\\';
    if (canonical && document.find("-0") == std::string::npos &&
        json::serialize(value).find('e') == std::string::npos) {
      CHECK(compact.advance(json::serialize(value)));
      CHECK(compact.complete());
    }
  }
  CHECK(finished > 100);
}

TEST_CASE("copies of a matcher go on alone") {
  const auto grammar = json_object_grammar();
  REQUIRE(grammar.has_value());
  Matcher one(*grammar);
  REQUIRE(one.advance("{\"a\": [{\"b\":"));
  Matcher two = one;
  CHECK(one.advance("1}]}"));
  CHECK(two.advance("null}, 2"));
  CHECK(one.complete());
  CHECK_FALSE(two.complete());
  CHECK_FALSE(two.advance("}"));
  CHECK(two.advance("]}"));
}

TEST_CASE("a vocabulary without all bytes is refused") {
  CHECK_FALSE(Vocabulary::build({"a", "b"}).has_value());
}

}  // namespace
}  // namespace penstock::grammar
