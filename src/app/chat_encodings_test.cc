// Which encoding a model's folder gives, with nano's vocabulary.
#include "app/chat_encodings.h"

#include <doctest/doctest.h>
#include <fstream>
#include <iterator>

#include "io/files/files.h"

namespace penstock {
namespace {

class Folder {
 public:
  Folder() { REQUIRE(folder_); }

  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(path() + "/" + name, std::ios::binary) << text;
    return path() + "/" + name;
  }
  const std::string& path() const { return folder_->path(); }

 private:
  Result<TemporaryDirectory> folder_ = TemporaryDirectory::make("penstock-chat");
};

std::string nano_json() {
  std::ifstream file("models/nano/tokenizer.json", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& json) {
  auto tokenizer = Tokenizer::from_json(json);
  REQUIRE(tokenizer);
  return std::move(*tokenizer);
}

// nano's vocabulary with another mark for users, so that no built-in encoding fits.
std::shared_ptr<const Tokenizer> unknown_tokenizer() {
  std::string json = nano_json();
  const std::string from = "<｜User｜>";
  std::size_t replaced = 0;
  for (std::size_t at = 0; (at = json.find(from, at)) != std::string::npos; ++replaced)
    json.replace(at, from.size(), "<|turn|>");
  REQUIRE(replaced > 0);
  return tokenizer_of(json);
}

std::string prompt_of(const prompt::ChatEncoding& encoding) {
  Conversation conversation;
  conversation.messages.emplace_back().text = "Hi <|turn|> <｜User｜>";
  const auto spans = encoding.render(conversation);
  REQUIRE(spans);
  std::string out;
  for (const PromptSpan& span : *spans)
    out += span.kind == SpanKind::kSpecial ? "[" + span.text + "]" : span.text;
  return out;
}

}  // namespace

TEST_CASE("a model without a built-in encoding uses the template of its folder") {
  const Folder folder;
  const auto tokenizer = unknown_tokenizer();
  const auto none = chat_encoding_of(folder.path(), "", tokenizer);
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::kUnsupported);
  CHECK(none.error().message.contains("name one with --chat-template"));

  folder.put("tokenizer_config.json",
             R"({"bos_token": "<｜begin▁of▁sentence｜>", "chat_template":
                 "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"})");
  const auto own = chat_encoding_of(folder.path(), "", tokenizer);
  REQUIRE(own);
  CHECK((*own)->name() == "template");
  CHECK(prompt_of(**own) == "[<｜begin▁of▁sentence｜>][<|turn|>]Hi <|turn|> <｜User｜>");
  CHECK((*own)->text_begin() == "<｜begin▁of▁sentence｜>");

  folder.put("chat_template.jinja", "{{ eos_token }}{{ messages[0].content }}<|turn|>");
  const auto file = chat_encoding_of(folder.path(), "", tokenizer);
  REQUIRE(file);
  CHECK(prompt_of(**file) == "Hi <|turn|> <｜User｜>[<|turn|>]");
}

TEST_CASE("--chat-template goes before the built-in encoding") {
  const Folder folder;
  const auto tokenizer = tokenizer_of(nano_json());
  const auto built_in = chat_encoding_of("models/nano", "", tokenizer);
  REQUIRE(built_in);
  CHECK((*built_in)->name().starts_with("deepseek"));
  const std::string path = folder.put("own.jinja", "{{ messages[0].content }}<｜Assistant｜>");
  const auto own = chat_encoding_of("models/nano", path, tokenizer);
  REQUIRE(own);
  CHECK(prompt_of(**own) == "Hi <|turn|> <｜User｜>[<｜Assistant｜>]");

  const auto missing = chat_encoding_of("models/nano", path + ".no", tokenizer);
  REQUIRE(!missing);
  CHECK(missing.error().code == ErrorCode::kNotFound);
  const auto broken =
      chat_encoding_of("models/nano", folder.put("broken.jinja", "a\nb\n{{ 1 + }}"), tokenizer);
  REQUIRE(!broken);
  CHECK(broken.error().message.contains("broken.jinja"));
  CHECK(broken.error().message.contains("line 3: a value is expected, there is '}}'"));
}

}  // namespace penstock
