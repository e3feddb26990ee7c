#include "core/prompt/tokenizer.h"

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/rng.h"
#include "core/prompt/detokenizer.h"
#include "core/prompt/span_cache.h"
#include "core/prompt/tokenizer_testing.h"
#include "core/prompt/unicode_utf8.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

using testing::SmallFile;

std::unique_ptr<Tokenizer> load(const std::string& json) {
  auto tokenizer = Tokenizer::from_json(json);
  REQUIRE_MESSAGE(tokenizer, tokenizer.error().message);
  return std::move(*tokenizer);
}

// Tokens as text, so that tables can be read: <s>|hello.
std::string spelled(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) {
    if (!text.empty()) text += '|';
    text += tokenizer.is_added(id) ? "@" : "";
    text += tokenizer.token_bytes(id);
  }
  return text;
}
std::string plain(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.encode(text, ids));
  return spelled(tokenizer, ids);
}
std::string with_added(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.encode_with_added_tokens(text, ids));
  return spelled(tokenizer, ids);
}

TEST_CASE("tokenizer: pieces are merged, added tokens only where they are meant") {
  const auto tokenizer = load(SmallFile().text());
  CHECK(plain(*tokenizer, "hello hello") == "hello| hello");
  CHECK(plain(*tokenizer, "helo") == "he|l|o");
  CHECK(plain(*tokenizer, "<s>") == "<|s|>");
  CHECK(plain(*tokenizer, "<tool>hello") == "<|t|o|o|l|>|hello");
  CHECK(with_added(*tokenizer, "<s>hello<tool>") == "@<s>|hello|@<tool>");
  CHECK(plain(*tokenizer, "") == "");
  CHECK(tokenizer->vocab_size() == 1002);
  CHECK(tokenizer->token_id("<s>") == TokenId{1000});
  CHECK(tokenizer->token_bytes(*tokenizer->token_id(" hello")) == " hello");
  CHECK(!tokenizer->token_id("absent"));
  CHECK(!tokenizer->token_id(""));
  CHECK(tokenizer->is_special(1000));
  CHECK(!tokenizer->is_special(1001));
  CHECK(tokenizer->is_added(1001));
  CHECK(!tokenizer->is_added(5000));
  CHECK(tokenizer->token_bytes(900).empty());
  CHECK(tokenizer->token_bytes(5000).empty());
}

TEST_CASE("tokenizer: a merge or a whole piece never makes an added token of plain text") {
  SmallFile file;
  // "hello" is an entry of the vocabulary (id 259) and an added token.
  file.added = R"({"id": 259, "content": "hello", "special": true})";
  for (const bool ignore_merges : {false, true}) {
    file.ignore_merges = ignore_merges;
    const auto tokenizer = load(file.text());
    CHECK(plain(*tokenizer, "hello") == "hell|o");
    CHECK(with_added(*tokenizer, "hello") == "@hello");
  }
}

TEST_CASE("tokenizer: ignore_merges takes a piece that is an entry as it is") {
  SmallFile file;
  // No merge leads to "he" + "l": the entry "hel" comes from a rule that never gets its turn.
  file.merges = {{"e", "l"}, {"h", "e"}, {"he", "l"}};
  CHECK(plain(*load(file.text()), "hel") == "h|el");
  file.ignore_merges = true;
  CHECK(plain(*load(file.text()), "hel") == "hel");
  CHECK(plain(*load(file.text()), "helhel") == "h|el|h|el");
}

TEST_CASE("tokenizer: spans of a prompt") {
  const auto tokenizer = load(SmallFile().text());
  std::vector<TokenId> ids{7};
  const std::vector<PromptSpan> spans = {
      {SpanKind::kSpecial, "<s>"}, {SpanKind::kPlain, "hello<s>"}, {SpanKind::kSpecial, "<tool>"}};
  REQUIRE(tokenizer->encode(spans, nullptr, ids));
  CHECK(spelled(*tokenizer, {ids.begin() + 1, ids.end()}) == "@<s>|hello|<|s|>|@<tool>");

  ids = {7};
  const std::vector<PromptSpan> unknown = {{SpanKind::kPlain, "hello"},
                                           {SpanKind::kSpecial, "<nope>"}};
  const Status status = tokenizer->encode(unknown, nullptr, ids);
  REQUIRE(!status);
  CHECK(status.error().code == ErrorCode::kInvalidArgument);
  CHECK(status.error().message.find("<nope>") != std::string::npos);
  CHECK(ids == std::vector<TokenId>{7});
  // An entry of the vocabulary is no special token.
  CHECK(!tokenizer->encode(std::vector<PromptSpan>{{SpanKind::kSpecial, "hello"}}, nullptr, ids));
}

TEST_CASE("tokenizer: flags of added tokens") {
  struct Case {
    const char* flags;
    const char* text;
    const char* expected;
  };
  const Case cases[] = {
      {R"("lstrip": true)", "h  <x> h", "h|@<x>| |h"},
      {R"("rstrip": true)", "h <x>\n\th", "h| |@<x>|h"},
      {R"("lstrip": true, "rstrip": true)", " <x>  <x> ", "@<x>|@<x>"},
      {R"("single_word": true)", "h<x>h", "h|<|x|>|h"},
      {R"("single_word": true)", "h <x> h", "h| |@<x>| |h"},
      {R"("single_word": true)", ".<x>,", ".|@<x>|,"},
      {R"("single_word": true)", "_<x>", "_|<|x|>"},
      {R"("normalized": false)", "<x><x>", "@<x>|@<x>"},
      {R"("normalized": false)", "<x", "<|x"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.flags);
    CAPTURE(c.text);
    SmallFile file;
    file.added = std::string(R"({"id": 1000, "content": "<x>", )") + c.flags + "}";
    CHECK(with_added(*load(file.text()), c.text) == c.expected);
  }
}

TEST_CASE("tokenizer: longest added token at the leftmost place; normalised ones after the raw") {
  SmallFile file;
  file.normalizer = R"({"type": "NFC"})";
  file.added = R"({"id": 1000, "content": "<a", "normalized": false},
      {"id": 1001, "content": "<ab>", "normalized": false},
      {"id": 1002, "content": "e\u0301", "normalized": true},
      {"id": 1003, "content": "b>", "normalized": false})";
  const auto tokenizer = load(file.text());
  CHECK(with_added(*tokenizer, "<ab>") == "@<ab>");
  CHECK(with_added(*tokenizer, "<ab") == "@<a|b");
  // Composed and decomposed spellings both are the token, for both sides are normalised.
  CHECK(with_added(*tokenizer, "x\u00e9") == "x|@e\u0301");
  CHECK(with_added(*tokenizer, "xe\u0301") == "x|@e\u0301");
  CHECK(plain(*tokenizer, "e\u0301") == plain(*tokenizer, "\u00e9"));
}

TEST_CASE("tokenizer: ill-formed UTF-8 is read as replacement characters") {
  const auto tokenizer = load(SmallFile().text());
  const auto decoded = [&](std::string_view text) {
    std::vector<TokenId> ids;
    REQUIRE(tokenizer->encode(text, ids));
    return tokenizer->decode(ids, Tokenizer::Special::kKeep);
  };
  CHECK(decoded("a\xFF"
                "b") == "a\uFFFDb");
  CHECK(decoded("\xF0\x9F\x98") == "\uFFFD");
  CHECK(decoded("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(decoded("中\xE4\xB8") == "中\uFFFD");
  CHECK(decoded(std::string_view("\0", 1)) == std::string(1, '\0'));
}

TEST_CASE("detokenizer: whole characters only, and nothing lost") {
  const auto tokenizer = load(SmallFile().text());
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    for (std::uint64_t i = rng.below(40); i > 0; --i) {
      ids.push_back(static_cast<TokenId>(rng.below(8) == 0 ? 998 + rng.below(6) : rng.below(268)));
    }
    for (const auto special : {Tokenizer::Special::kSkip, Tokenizer::Special::kKeep}) {
      std::string bytes;
      std::string text;
      IncrementalDetokenizer detokenizer(*tokenizer, special);
      for (const TokenId id : ids) {
        std::string part;
        detokenizer.push(id, part);
        CHECK(unicode::well_formed_prefix(part) == part.size());
        CHECK(detokenizer.pending() < 4);
        text += part;
        if (special == Tokenizer::Special::kKeep || !tokenizer->is_special(id)) {
          bytes += tokenizer->token_bytes(id);
        }
      }
      detokenizer.finish(text);
      CHECK(detokenizer.pending() == 0);
      std::string whole;
      unicode::append_repaired(bytes, whole);
      CHECK(text == whole);
      CHECK(tokenizer->decode(ids, special) == whole);
    }
  }
}

TEST_CASE("tokenizer.json: what is not supported or malformed is named") {
  struct Case {
    const char* what;
    std::string json;
    ErrorCode code;
    const char* field;
  };
  const auto with = [](auto change) {
    SmallFile file;
    change(file);
    return file.text();
  };
  const auto pre = [&](const char* text) { return with([&](auto& f) { f.pre_tokenizer = text; }); };
  const auto split = [&](const char* pattern) {
    return pre(
        (std::string(
             R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ")") +
         pattern + R"("}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel"}]})")
            .c_str());
  };
  const char* const pattern_field = "pre_tokenizer.pretokenizers[0].pattern";
  constexpr auto kBad = ErrorCode::kInvalidArgument;
  constexpr auto kNo = ErrorCode::kUnsupported;
  const Case cases[] = {
      {"not JSON", "{\"model\": ", kBad, ""},
      {"two values", "{} {}", kBad, ""},
      {"not an object", "[]", kBad, ""},
      {"no model", "{}", kBad, "model"},
      {"unknown key", with([](auto& f) { f.root_extra = ", \"surprise\": 1"; }), kNo, "surprise"},
      {"truncation", with([](auto& f) { f.root_extra = ", \"truncation\": {}"; }), kNo,
       "truncation"},
      {"unknown model key", with([](auto& f) { f.model_extra = ", \"alpha\": 1"; }), kNo,
       "model.alpha"},
      {"dropout", with([](auto& f) { f.model_extra = ", \"dropout\": 0.1"; }), kNo,
       "model.dropout"},
      {"byte fallback", with([](auto& f) { f.model_extra = ", \"byte_fallback\": true"; }), kNo,
       "model.byte_fallback"},
      {"suffix", with([](auto& f) { f.model_extra = ", \"end_of_word_suffix\": \"</w>\""; }), kNo,
       "model.end_of_word_suffix"},
      {"model type", R"({"model": {"type": "Unigram"}})", kNo, "model.type"},
      {"no bytes", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
          "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}})",
       kBad, "model.vocab"},
      {"id twice", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}})", kBad,
       "model.vocab"},
      {"id too large", R"({"model": {"type": "BPE", "vocab": {"a": 1048576}, "merges": []}})", kBad,
       "model.vocab"},
      {"id a fraction", R"({"model": {"type": "BPE", "vocab": {"a": 0.5}, "merges": []}})", kBad,
       "model.vocab"},
      {"merge of strangers", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})",
       kBad, "model.merges[0]"},
      {"merge of three", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a a"]}})",
       kBad, "model.merges[0]"},
      {"normalizer", with([](auto& f) { f.normalizer = R"({"type": "NFKC"})"; }), kNo,
       "normalizer.type"},
      {"no pre-tokenizer", pre("null"), kNo, "pre_tokenizer"},
      {"pre-tokenizer type", pre(R"({"type": "Whitespace"})"), kNo, "pre_tokenizer.type"},
      {"no byte level", pre(R"({"type": "Digits", "individual_digits": true})"), kNo,
       "pre_tokenizer"},
      {"stage behind ByteLevel",
       pre(R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})"),
       kNo, "pre_tokenizer.pretokenizers[1]"},
      {"bad regex", split("("), kBad, pattern_field},
      {"anchor", split("^a"), kNo, pattern_field},
      {"word border", split("\\\\b"), kNo, pattern_field},
      {"nested class", split("[a[b]]"), kNo, pattern_field},
      {"possessive interval", split("a{2}+"), kNo, pattern_field},
      {"unknown property", split("\\\\p{Klingon}"), kNo, pattern_field},
      {"dotall", split("(?s)."), kNo, pattern_field},
      {"behaviour",
       pre(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": "a"},
          "behavior": "Exploded", "invert": false}, {"type": "ByteLevel"}]})"),
       kNo, "pre_tokenizer.pretokenizers[0].behavior"},
      {"decoder", with([](auto& f) { f.decoder = R"({"type": "WordPiece"})"; }), kNo,
       "decoder.type"},
      {"added token without id", with([](auto& f) { f.added = R"({"content": "x"})"; }), kBad,
       "added_tokens[0].id"},
      {"added token of another's id",
       with([](auto& f) { f.added = R"({"id": 5, "content": "xyz"})"; }), kBad,
       "added_tokens[0].id"},
      {"added token with another id",
       with([](auto& f) { f.added = R"({"id": 999, "content": "a"})"; }), kBad,
       "added_tokens[0].id"},
      {"empty added token", with([](auto& f) { f.added = R"({"id": 999, "content": ""})"; }), kBad,
       "added_tokens[0].content"},
      {"added token's type", with([](auto& f) { f.added = "7"; }), kBad, "added_tokens[0]"},
      {"flag's type",
       with([](auto& f) { f.added = R"({"id": 999, "content": "x", "lstrip": 1})"; }), kBad,
       "added_tokens[0].lstrip"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const auto tokenizer = Tokenizer::from_json(c.json);
    REQUIRE(!tokenizer);
    CAPTURE(tokenizer.error().message);
    CHECK(tokenizer.error().code == c.code);
    CHECK(tokenizer.error().field == c.field);
    CHECK(tokenizer.error().message.starts_with("tokenizer.json"));
  }
}

TEST_CASE("tokenizer: a regular expression that gives up is an error, and leaves the ids alone") {
  SmallFile file;
  file.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [{"type": "Split",
      "pattern": {"Regex": "(?:(?:x|xx|xxx)+)+[yz]"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
  const auto tokenizer = load(file.text());
  CHECK(plain(*tokenizer, "xxy") == "x|x|y");
  std::vector<TokenId> ids{3};
  const Status status = tokenizer->encode(std::string(200, 'x'), ids);
  REQUIRE(!status);
  CHECK(status.error().code == ErrorCode::kUnsupported);
  CHECK(ids == std::vector<TokenId>{3});
}

TEST_CASE("tokenizer: our own model's file") {
  std::ifstream stream("models/nano/tokenizer.json", std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(stream), {}};
  REQUIRE(!json.empty());  // committed; run from the top of the repository
  const auto tokenizer = load(json);
  const std::string text =
      "The code is 4711.\r\n\r\n  <｜User｜>naïve 中文 \U0001F469\u200d\U0001F680!";
  std::vector<TokenId> ids;
  REQUIRE(tokenizer->encode(text, ids));
  for (const TokenId id : ids)
    CHECK(!tokenizer->is_added(id));
  CHECK(tokenizer->decode(ids, Tokenizer::Special::kSkip) == text);
}

TEST_CASE("tokenizer: many threads may encode at once") {
  SmallFile file;
  file.normalizer = R"({"type": "NFC"})";
  const auto tokenizer = load(file.text());
  const std::string text = "hello he\u0301 hello 123 \u4e2d";
  std::vector<TokenId> expected;
  REQUIRE(tokenizer->encode(text, expected));
  std::vector<std::vector<TokenId>> results(4);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i)
          (void)tokenizer->encode(text, result);
      });
    }
  }
  for (const auto& result : results) {
    REQUIRE(result.size() == 50 * expected.size());
    CHECK(std::equal(expected.begin(), expected.end(), result.end() - std::ssize(expected)));
  }
}

TEST_CASE("span cache: the same ids, bounded memory, least recently used goes first") {
  const auto tokenizer = load(SmallFile().text());
  SpanCache cache(std::array<std::uint8_t, 32>{1, 2, 3},
                  {.bytes_max = 9100, .span_bytes_min = 100, .long_bytes_min = 100});
  const auto encode = [&](char c, std::size_t size) {
    const std::vector<PromptSpan> spans = {{SpanKind::kPlain, std::string(size, c)}};
    std::vector<TokenId> ids;
    REQUIRE(tokenizer->encode(spans, &cache, ids));
    std::vector<TokenId> uncached;
    REQUIRE(tokenizer->encode(spans, nullptr, uncached));
    CHECK(ids == uncached);
    CHECK(cache.bytes() <= 9100);
  };
  encode('a', 99);
  CHECK(cache.size() == 0);
  CHECK(cache.counters().misses == 0);
  encode('a', 300);
  encode('a', 300);
  CHECK(cache.counters().hits == 1);
  CHECK(cache.counters().misses == 1);
  CHECK(cache.counters().hit_bytes == 300);
  // A span of 300 letters costs 1724 bytes: five fit. Using the first keeps it.
  for (const char c : {'b', 'c', 'd', 'f'})
    encode(c, 300);
  CHECK(cache.size() == 5);
  encode('a', 300);
  encode('g', 300);
  CHECK(cache.size() == 5);
  CHECK(cache.counters().evictions == 1);
  encode('a', 300);
  CHECK(cache.counters().hits == 3);
  encode('b', 300);
  CHECK(cache.counters().hits == 3);
  // More than a quarter of the cache is not stored.
  encode('z', 600);
  encode('z', 600);
  CHECK(cache.counters().hits == 3);
  // Another tokenizer's spans have other names.
  CHECK(cache.place(1, "text").place != cache.place(2, "text").place);
  CHECK(cache.place(1, "text").place == cache.place(1, "text").place);
}

TEST_CASE("span cache: a short span is stored when it comes the second time") {
  SpanCache cache(std::array<std::uint8_t, 32>{1, 2, 3},
                  {.span_bytes_min = 100, .long_bytes_min = 200});
  const std::vector<TokenId> ids = {1, 2, 3};
  const auto come = [&](char c, std::size_t size) {
    const std::string text(size, c);
    const SpanCache::Span span = cache.place(1, text);
    if (const TokenIds known = cache.find(span)) {
      CHECK(*known == ids);
      return true;
    }
    cache.insert(span, ids);
    return false;
  };
  CHECK(!come('a', 200));
  CHECK(come('a', 200));
  CHECK(!come('a', 199));
  CHECK(!come('b', 199));
  CHECK(!come('a', 199));
  CHECK(come('a', 199));
  CHECK(cache.size() == 2);
}

TEST_CASE("span cache: spans in one place get their own ids") {
  SpanCache cache(std::array<std::uint8_t, 32>{1}, {.span_bytes_min = 1, .long_bytes_min = 1});
  const std::vector<TokenId> ids = {1, 2, 3};
  const std::vector<TokenId> others = {4};
  const SpanCache::Span span{7, 1, "one text"};
  cache.insert(span, ids);
  CHECK(*cache.find(span) == ids);
  CHECK(cache.find({7, 1, "other text"}) == nullptr);
  CHECK(cache.find({7, 2, "one text"}) == nullptr);  // another tokenizer's
  const std::size_t bytes = cache.bytes();
  cache.insert({7, 2, "one text"}, ids);  // takes the place
  CHECK(cache.bytes() == bytes);
  CHECK(cache.size() == 1);
  CHECK(cache.find(span) == nullptr);
  cache.insert(span, others);
  CHECK(*cache.find(span) == others);
}

}  // namespace
}  // namespace penstock
