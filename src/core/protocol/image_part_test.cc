#include <fmt/format.h>

#include <string>

#include "core/protocol/chat_request.h"
#include "core/protocol/messages_request.h"
#include "core/protocol/responses_request.h"
#include "core/protocol/seal.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

// A GIF of one pixel.
constexpr std::string_view kGif = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
// The beginning of a PNG of 65,536 x 65,536 pixels.
constexpr std::string_view kHugePng = "iVBORw0KGgoAAAANSUhEUgABAAAAAQAACAIAAAAAAAAA";

// What one format says about a part: where, and the code.
struct Answer {
  std::string field;
  std::string code;
  std::string message;
  ErrorCode kind{};
};

Answer answer(const Error& error) {
  return {error.field, error.openai_code.empty() ? "unsupported_parameter" : error.openai_code,
          error.message, error.code};
}

Answer chat(std::string_view part) {
  const auto request = parse_chat_request(
      fmt::format(R"({{"model":"m","messages":[{{"role":"user","content":[{}]}}]}})", part));
  REQUIRE(!request);
  return answer(request.error());
}

Answer messages(std::string_view part) {
  const auto request = parse_messages_request(
      fmt::format(R"({{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":[{}]}}]}})",
                  part),
      MessagesCall::kAnswer);
  REQUIRE(!request);
  return answer(request.error());
}

Answer responses(std::string_view part) {
  const auto request = parse_responses_request(
      fmt::format(R"({{"model":"m","input":[{{"role":"user","content":[{}]}}]}})", part), Seal{});
  REQUIRE(!request);
  return answer(request.error());
}

std::string data_url(std::string_view type, std::string_view data) {
  return fmt::format("data:{};base64,{}", type, data);
}

struct UrlCase {
  std::string url;
  std::string_view code;
};

// What every format says about an address.
const UrlCase kUrls[] = {
    {"https://example.com/i.png", "unsupported_parameter"},
    {"http://example.com/i.png", "unsupported_parameter"},
    {data_url("image/gif", kGif), "unsupported_parameter"},
    {data_url("image/png", kGif), "unsupported_parameter"},  // the bytes count, not the name
    {"", "invalid_image_url"},
    {"file:///etc/passwd", "invalid_image_url"},
    {"gopher://127.0.0.1:6379/", "invalid_image_url"},
    {"//example.com/i.png", "invalid_image_url"},
    {"https://example.com/" + std::string(2048, 'a'), "invalid_image_url"},
    {"data:image/gif," + std::string(kGif), "invalid_image_url"},
    {data_url("text/html", kGif), "unsupported_image_media_type"},
    {data_url("image/png", "PGh0bWw+"), "unsupported_image_media_type"},
    {data_url("image/gif", "R0lGOD*h"), "invalid_base64_image"},
    {data_url("image/gif", "R0lGOD"), "invalid_base64_image"},
    {data_url("image/gif", ""), "empty_image_file"},
    {data_url("image/gif", "R0lGODlh"), "image_parse_error"},
    {data_url("image/png", kHugePng), "image_too_large"},
    {data_url("image/png", std::string((20 << 20) / 3 * 4 + 8, 'A')), "image_file_too_large"},
};

}  // namespace

TEST_CASE("addresses of images, in every format") {
  for (const auto& [url, code] : kUrls) {
    CAPTURE(url.substr(0, 60));
    const bool sound = code == "unsupported_parameter";
    const auto check = [&](const Answer& got, std::string_view type, std::string_view where) {
      CHECK(got.code == code);
      CHECK(got.kind == (sound ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument));
      CHECK(got.field == (sound ? type : where));
      CHECK(got.message.starts_with(got.field + ": "));
      if (sound) CHECK(got.message.contains("the model \"m\" reads no images"));
    };
    check(chat(fmt::format(R"({{"type":"image_url","image_url":{{"url":"{}"}}}})", url)),
          "messages[0].content[0].type", "messages[0].content[0].image_url.url");
    check(messages(fmt::format(R"({{"type":"image","source":{{"type":"url","url":"{}"}}}})", url)),
          "messages[0].content[0].type", "messages[0].content[0].source.url");
    check(responses(fmt::format(R"({{"type":"input_image","image_url":"{}"}})", url)),
          "input[0].content[0].type", "input[0].content[0].image_url");
  }
}

TEST_CASE("base64 of the Messages API") {
  const std::pair<std::string, std::string_view> cases[] = {
      {std::string(kGif), "unsupported_parameter"},
      {"R0lGOD*h", "invalid_base64_image"},
      {"", "empty_image_file"},
      {"PGh0bWw+", "unsupported_image_media_type"},
      {std::string(kHugePng), "image_too_large"},
  };
  for (const auto& [data, code] : cases) {
    CAPTURE(data);
    const auto got = messages(fmt::format(
        R"({{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{}"}}}})",
        data));
    CHECK(got.code == code);
    CHECK(got.field == (code == "unsupported_parameter" ? "messages[0].content[0].type"
                                                        : "messages[0].content[0].source.data"));
  }
}

TEST_CASE("parts that lack something, or have it of the wrong type") {
  const std::pair<std::string_view, std::string_view> of_chat[] = {
      {R"({"type":"image_url"})", "image_url"},
      {R"({"type":"image_url","image_url":null})", "image_url"},
      {R"({"type":"image_url","image_url":"https://x/"})", "image_url"},
      {R"({"type":"image_url","image_url":{}})", "image_url.url"},
      {R"({"type":"image_url","image_url":{"url":7}})", "image_url.url"},
      {R"({"type":"image_url","image_url":{"url":"https://x/","detail":"most"}})",
       "image_url.detail"},
  };
  for (const auto& [part, field] : of_chat)
    CHECK(chat(part).field == fmt::format("messages[0].content[0].{}", field));
  const std::pair<std::string_view, std::string_view> of_messages[] = {
      {R"({"type":"image"})", "source"},
      {R"({"type":"image","source":[]})", "source"},
      {R"({"type":"image","source":{}})", "source.type"},
      {R"({"type":"image","source":{"type":"path"}})", "source.type"},
      {R"({"type":"image","source":{"type":"url"}})", "source.url"},
      {R"({"type":"image","source":{"type":"file"}})", "source.file_id"},
      {R"({"type":"image","source":{"type":"file","file_id":"f"}})", "source.file_id"},
      {R"({"type":"image","source":{"type":"base64","data":""}})", "source.media_type"},
      {R"({"type":"image","source":{"type":"base64","media_type":"image/bmp"}})",
       "source.media_type"},
      {R"({"type":"image","source":{"type":"base64","media_type":"image/png"}})", "source.data"},
  };
  for (const auto& [part, field] : of_messages)
    CHECK(messages(part).field == fmt::format("messages[0].content[0].{}", field));
  const std::pair<std::string_view, std::string_view> of_responses[] = {
      {R"({"type":"input_image"})", "image_url"},
      {R"({"type":"input_image","image_url":{"url":"https://x/"}})", "image_url"},
      {R"({"type":"input_image","image_url":"https://x/","detail":1})", "detail"},
      {R"({"type":"input_image","file_id":"f"})", "file_id"},
  };
  for (const auto& [part, field] : of_responses)
    CHECK(responses(part).field == fmt::format("input[0].content[0].{}", field));
}

TEST_CASE("a model's name is shown as it was sent, when it is one") {
  for (const auto& [model, said] :
       {std::pair<std::string, std::string_view>{R"("a\u000ab")", R"(the model "a\u000ab" reads)"},
        {fmt::format("\"{}\"", std::string(200, 'n')), "the model reads"}}) {
    const auto request = parse_chat_request(fmt::format(
        R"({{"model":{},"messages":[{{"role":"user","content":[{{"type":"image_url",
            "image_url":{{"url":"https://x/"}}}}]}}]}})",
        model));
    REQUIRE(!request);
    CHECK(request.error().message.contains(said));
  }
}

}  // namespace penstock::protocol
