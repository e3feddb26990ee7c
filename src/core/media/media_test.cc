#include <fmt/format.h>

#include <string>

#include "core/media/data_url.h"
#include "core/media/image_header.h"

#include <doctest/doctest.h>

namespace penstock::media {
namespace {

using namespace std::string_literals;

constexpr std::string_view kPng =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg==";
constexpr std::string_view kGif = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
constexpr std::string_view kWebpLossy = "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA";
constexpr std::string_view kWebpLossless = "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==";
constexpr std::size_t kMax = 1 << 20;

std::string png(std::uint32_t width, std::uint32_t height) {
  std::string out = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"s;
  for (const std::uint32_t side : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8)
      out += static_cast<char>(side >> shift);
  }
  return out + "\x08\x02\0\0\0"s + std::string(4, 'c');
}

// A JPEG's beginning: what stands before the frame header, then the header of 640 x 480.
std::string jpeg(const std::string& before, char frame = '\xc0') {
  return "\xff\xd8"s + before + "\xff"s + frame + "\0\x11\x08\x01\xe0\x02\x80\x03"s +
         std::string(9, 'x');
}

std::string webp(const std::string& name, const std::string& body) {
  return "RIFF"s + static_cast<char>(body.size() + 12) + "\0\0\0WEBP"s + name + "\x0a\0\0\0"s +
         body;
}

std::string code_of(const Error& error) {
  CHECK(error.code == ErrorCode::kInvalidArgument);
  return error.openai_code;
}

// "png 1x1", or the code of the error.
std::string header(std::string_view bytes, const ImageLimits& limits = {}) {
  const auto info = read_image_header(bytes, limits);
  if (!info) return code_of(info.error());
  return fmt::format("{} {}x{}", media_type(info->type).substr(6), info->width, info->height);
}

std::string decoded(std::string_view text, std::size_t bytes_max = kMax) {
  const auto bytes = decode_base64(text, bytes_max);
  return bytes ? *bytes : code_of(bytes.error());
}

}  // namespace

TEST_CASE("base64 is read strictly") {
  CHECK(decoded("") == "");
  CHECK(decoded("Zg==") == "f");
  CHECK(decoded("Zm8=") == "fo");
  CHECK(decoded("Zm9v") == "foo");
  CHECK(decoded("Zm9vYg==") == "foob");
  CHECK(decoded("+/+/") == "\xfb\xff\xbf");
  for (const std::string_view bad :
       {"Zg", "Zg=", "Zg===", "=", "====", "Z===", "Zm9v\n", "Zm9 ", "Zm9v YmFy", "Z=9v",
        "Zg==Zm9v", "-_-_", "Zh==", "Zm9=", "Zm\0v", "Zm9\xc3\xbf"}) {
    CAPTURE(bad);
    CHECK(decoded(bad) == "invalid_base64_image");
  }
  CHECK(decode_base64("Zm9v!m9v", kMax).error().message.contains("character at 4"));
}

TEST_CASE("the size is checked before decoding") {
  CHECK(decoded("Zm9v", 3) == "foo");
  CHECK(decoded("Zm8=", 2) == "fo");
  CHECK(decoded("Zm9v", 2) == "image_file_too_large");
  CHECK(decoded("!!!!", 2) == "image_file_too_large");
}

TEST_CASE("data URLs") {
  for (const std::string_view good :
       {"data:image/png;base64,Zm9v", "DATA:IMAGE/PNG;BASE64,Zm9v", "data:image/jpg;base64,Zm9v",
        "data:image/jpeg;name=x;base64,Zm9v", "data:image/webp ;base64,Zm9v"}) {
    CAPTURE(good);
    CHECK(decode_image_url(good, kMax).value_or("") == "foo");
  }
  const std::pair<std::string_view, std::string_view> bad[] = {
      {"", "invalid_image_url"},
      {"http://x/", "invalid_image_url"},
      {"data:", "invalid_image_url"},
      {"data:image/png;base64", "invalid_image_url"},
      {"data:image/png,Zm9v", "invalid_image_url"},
      {"data:image/png;base64;x,Zm9v", "invalid_image_url"},
      {"data:;base64,Zm9v", "unsupported_image_media_type"},
      {"data:text/html;base64,Zm9v", "unsupported_image_media_type"},
      {"data:image/svg+xml;base64,Zm9v", "unsupported_image_media_type"},
      {"data:image/png;base64,Zm9", "invalid_base64_image"},
      {"data:image/png;base64,Zm9v,", "invalid_base64_image"},
  };
  for (const auto& [url, code] : bad) {
    CAPTURE(url);
    const auto bytes = decode_image_url(url, kMax);
    REQUIRE(!bytes);
    CHECK(code_of(bytes.error()) == code);
  }
  const auto large = decode_image_url("data:image/png;base64,Zm9vZm9v", 5);
  REQUIRE(!large);
  CHECK(code_of(large.error()) == "image_file_too_large");
}

TEST_CASE("whole images of every type") {
  CHECK(header(decoded(kPng)) == "png 1x1");
  CHECK(header(decoded(kGif)) == "gif 1x1");
  CHECK(header(decoded(kWebpLossy)) == "webp 1x1");
  CHECK(header(decoded(kWebpLossless)) == "webp 1x1");
}

TEST_CASE("width and height come from the header") {
  CHECK(header(png(800, 600)) == "png 800x600");
  CHECK(header("GIF87a\x40\x01\xf0\0\0\0\0"s) == "gif 320x240");
  CHECK(header(webp("VP8 ", "\0\0\0\x9d\x01\x2a\x40\x41\xf0\xc0"s)) == "webp 320x240");
  CHECK(header(webp("VP8L", "\x2f\x3f\xc1\x3b\0\0\0\0\0\0"s)) == "webp 320x240");
  CHECK(header(webp("VP8X", "\0\0\0\0\x3f\x01\0\xef\0\0"s)) == "webp 320x240");
  CHECK(header(jpeg("")) == "jpeg 640x480");
  const std::string application = "\xff\xe0\0\x06JFIF"s;
  CHECK(header(jpeg(application)) == "jpeg 640x480");
  CHECK(header(jpeg(application + "\xff\xff\xff\x01\xff\xd3"s, '\xc2')) == "jpeg 640x480");
  CHECK(header(jpeg("\xff\xc4\0\4ab"s + application, '\xcf')) == "jpeg 640x480");
}

TEST_CASE("what is no image, or not a whole header") {
  CHECK(header("") == "empty_image_file");
  for (const std::string_view other :
       {std::string_view("<svg xmlns='x'/>"), std::string_view("BM\x36\0\0\0\0\0", 8),
        std::string_view("RIFF\4\0\0\0WAVEfmt ", 16), std::string_view("%PDF-1.7"),
        std::string_view("\x89PNG"), std::string_view("\xff\xd8")}) {
    CHECK(header(other) == "unsupported_image_media_type");
  }
  const std::string broken[] = {
      png(0, 1),
      png(1, 0),
      "\x89PNG\r\n\x1a\n\0\0\0\x0dIDAT"s + std::string(20, 'x'),
      "GIF89a\1\0\0\0\0\0\0"s,
      webp("VP8 ", "\0\0\0\x9d\x01\x2b\x40\x41\xf0\xc0"s),
      webp("VP8L", "\x2e\x3f\xc1\x3b\0\0\0\0\0\0"s),
      webp("ALPH", "\0\0\0\0\x3f\x01\0\xef\0\0"s),
      jpeg("\xff\xe0\0\1"s),      // a length below its own size
      jpeg("\xff\xe0\xff\xff"s),  // a length beyond the end
      jpeg("\xff\xe0\0\2ab"s),    // no marker
      jpeg("\xff\xda\0\4ab"s),    // data before a frame
      jpeg("\xff\xd9"s),          // the end before a frame
      "\xff\xd8" + std::string(64, '\xff'),
      "\xff\xd8\xff\xc0\0\x11\x08\0\0\2\x80\3"s,  // the height comes later: DNL
  };
  for (const auto& bytes : broken)
    CHECK(header(bytes) == "image_parse_error");
  for (const auto& whole : {png(8, 6), "GIF87a\x40\x01\xf0\0\0\0\0"s,
                            webp("VP8X", "\0\0\0\0\x3f\x01\0\xef\0\0"s), jpeg("\xff\xe0\0\2"s)}) {
    const std::size_t needed = whole.starts_with('\xff') ? whole.size() - 10 : whole.size();
    for (std::size_t size = 0; size < needed; ++size)
      CHECK(!read_image_header(std::string_view(whole).substr(0, size)));
  }
}

TEST_CASE("limits hold for bytes, sides and pixels") {
  CHECK(header(png(16'384, 1000)) == "png 16384x1000");
  CHECK(header(png(16'385, 1)) == "image_too_large");
  CHECK(header(png(1, 0xffffffff)) == "image_too_large");
  CHECK(header(png(10'000, 5'000)) == "png 10000x5000");
  CHECK(header(png(10'000, 5'001)) == "image_too_large");
  const ImageLimits limits{33, 16'384, 50'000'000};
  CHECK(header(png(1, 1), limits) == "png 1x1");
  CHECK(header(png(1, 1) + "x", limits) == "image_file_too_large");
}

TEST_CASE("media types") {
  for (const std::string_view good : {"image/png", "Image/JPEG", "image/jpg", "image/gif;q=1"})
    CHECK(is_image_media_type(good));
  for (const std::string_view bad :
       {"", "image/", "image/pngx", "ximage/png", "image/svg+xml", ";"})
    CHECK(!is_image_media_type(bad));
}

}  // namespace penstock::media
