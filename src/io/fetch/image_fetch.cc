#include "io/fetch/image_fetch.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>

#include "base/check.h"

namespace penstock {
namespace {

constexpr std::size_t kUrlBytesMax = 2048;
constexpr std::size_t kHeaderBytesMax = std::size_t{64} << 10;
constexpr std::string_view kBadUrl = "invalid_image_url";
constexpr std::string_view kFailed = "failed_to_download_image";

using CurlUrl = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;
using CurlEasy = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using CurlList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

std::unexpected<Error> refuse(std::string_view code, std::string message) {
  return std::unexpected(
      Error{ErrorCode::kInvalidArgument, std::move(message), {}, std::string(code)});
}

// A part of a URL, empty when it has none.
std::string part_of(CURLU* url, CURLUPart part, unsigned int flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK || text == nullptr) return {};
  std::string out(text);
  curl_free(text);
  return out;
}

struct Target {
  std::string url;
  std::string host;  // without brackets
  std::uint16_t port = 0;
  bool tls = false;
};

// Looks at the URL with the parser that the transfer will use.
Result<Target> check_url(CURLU* url, const ImageFetchOptions& options) {
  Target target;
  const std::string scheme = part_of(url, CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https")
    return refuse(kBadUrl, "only http:// and https:// addresses are fetched");
  target.tls = scheme == "https";
  if (!part_of(url, CURLUPART_USER).empty() || !part_of(url, CURLUPART_PASSWORD).empty())
    return refuse(kBadUrl, "an address with a user or a password in it is not fetched");
  if (!part_of(url, CURLUPART_ZONEID).empty())
    return refuse(kBadUrl, "an address with a zone in it is not fetched");
  target.host = part_of(url, CURLUPART_HOST);
  if (target.host.starts_with('[')) target.host = target.host.substr(1, target.host.size() - 2);
  const bool plain = !target.host.empty() && std::ranges::all_of(target.host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == ':';
  });
  if (!plain) return refuse(kBadUrl, "the host must be letters, digits, dots and hyphens");
  const std::string port = part_of(url, CURLUPART_PORT, CURLU_DEFAULT_PORT);
  std::from_chars(port.data(), port.data() + port.size(), target.port);
  if (std::ranges::find(options.ports, target.port) == options.ports.end()) {
    return refuse(kBadUrl, fmt::format("port {} is not allowed, only {}", port,
                                       fmt::join(options.ports, ", ")));
  }
  target.url = part_of(url, CURLUPART_URL);
  return target;
}

// What one hop's callbacks write down.
struct Hop {
  const ImageFetchOptions& options;
  bool opened = false;  // a socket, to an address that may be asked
  std::string refused;  // "127.0.0.1 is loopback"
  std::string body;
  std::size_t header_bytes = 0;
  bool too_large = false;
};

// Every connection begins here, with the address that it will have.
curl_socket_t open_socket(void* context, curlsocktype /*purpose*/, curl_sockaddr* address) {
  Hop& hop = *static_cast<Hop*>(context);
  const auto ip = ip_of(address->addr);
  const std::string_view kind = ip ? hop.options.refuse(*ip) : "of an unknown family";
  if (!kind.empty()) {
    hop.refused = fmt::format("{} is {}", ip ? to_string(*ip) : "its address", kind);
    return CURL_SOCKET_BAD;
  }
  hop.opened = true;
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* context) {
  Hop& hop = *static_cast<Hop*>(context);
  const std::size_t bytes = size * count;
  if (bytes > hop.options.image.bytes_max - hop.body.size()) {
    hop.too_large = true;
    return 0;
  }
  hop.body.append(data, bytes);
  return bytes;
}

std::size_t take_header(char* /*data*/, std::size_t size, std::size_t count, void* context) {
  Hop& hop = *static_cast<Hop*>(context);
  hop.header_bytes += size * count;
  return hop.header_bytes <= kHeaderBytesMax ? size * count : 0;
}

template <typename T>
void set(CURL* easy, CURLoption option, T value) {
  ENSURE(curl_easy_setopt(easy, option, value) == CURLE_OK);
}

void set_up(CURL* easy, const Target& target, Hop& hop, std::chrono::milliseconds left) {
  set(easy, CURLOPT_URL, target.url.c_str());
  set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  set(easy, CURLOPT_PROXY, "");  // also none from the environment
  set(easy, CURLOPT_NOSIGNAL, 1L);
  set(easy, CURLOPT_QUICK_EXIT, 1L);  // the end does not wait for a slow name server
  set(easy, CURLOPT_FOLLOWLOCATION, 0L);
  set(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(easy, CURLOPT_USERAGENT, "penstock");
  set(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(left.count()));
  set(easy, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(hop.options.image.bytes_max));
  set(easy, CURLOPT_OPENSOCKETFUNCTION, &open_socket);
  set(easy, CURLOPT_OPENSOCKETDATA, static_cast<void*>(&hop));
  set(easy, CURLOPT_WRITEFUNCTION, &take_body);
  set(easy, CURLOPT_WRITEDATA, static_cast<void*>(&hop));
  set(easy, CURLOPT_HEADERFUNCTION, &take_header);
  set(easy, CURLOPT_HEADERDATA, static_cast<void*>(&hop));
}

// Host and addresses in the form of CURLOPT_RESOLVE.
Result<CurlList> pin(const Target& target, const ImageFetchOptions& options) {
  CurlList list(nullptr, &curl_slist_free_all);
  if (!options.resolve || parse_ip(target.host)) return list;
  std::string entry = fmt::format("{}:{}:", target.host, target.port);
  const auto addresses = options.resolve(target.host);
  if (addresses.empty())
    return refuse(kFailed, fmt::format("the host {} has no address", target.host));
  for (const auto& address : addresses)
    entry += fmt::format("{}{}", &address == addresses.data() ? "" : ",", to_string(address));
  list.reset(curl_slist_append(nullptr, entry.c_str()));
  ENSURE(list != nullptr);
  return list;
}

std::unexpected<Error> failure(CURLcode code, const Target& target, const Hop& hop) {
  if (hop.too_large || code == CURLE_FILESIZE_EXCEEDED) {
    return refuse("image_file_too_large", fmt::format("{} sends more than {} bytes", target.host,
                                                      hop.options.image.bytes_max));
  }
  if (!hop.opened && !hop.refused.empty())
    return refuse(kBadUrl, fmt::format("{} must not be asked: {}", target.host, hop.refused));
  return refuse(kFailed, fmt::format("{}: {}", target.host, curl_easy_strerror(code)));
}

struct Answer {
  std::string redirect;  // as sent; empty: the body is the image
};

Result<Answer> read_answer(CURL* easy, const Target& target) {
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  char* text = nullptr;
  if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) {
    // As sent: relative ones are resolved by the next look at the URL.
    curl_header* location = nullptr;
    if (curl_easy_header(easy, "location", 0, CURLH_HEADER, -1, &location) != CURLHE_OK ||
        *location->value == '\0') {
      return refuse(kFailed, fmt::format("{} redirects to nowhere", target.host));
    }
    return Answer{location->value};
  }
  if (status != 200) return refuse(kFailed, fmt::format("{} answers {}", target.host, status));
  curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &text);
  const std::string_view type = text == nullptr ? "" : text;
  if (!type.empty() && !media::is_image_media_type(type) && type != "application/octet-stream") {
    return refuse("unsupported_image_media_type",
                  fmt::format("what {} sends is no PNG, JPEG, GIF or WebP image by its content "
                              "type",
                              target.host));
  }
  return Answer{};
}

}  // namespace

Result<FetchedImage> fetch_image(const std::string& text, const ImageFetchOptions& options) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  ENSURE(started == CURLE_OK);
  const auto end = std::chrono::steady_clock::now() + options.time_max;
  const CurlUrl url(curl_url(), &curl_url_cleanup);
  ENSURE(url != nullptr);
  std::string next = text;
  bool was_tls = false;
  for (std::uint32_t redirects = 0; redirects <= options.redirects_max; ++redirects) {
    if (next.size() > kUrlBytesMax)
      return refuse(kBadUrl, fmt::format("the address is longer than {} bytes", kUrlBytesMax));
    if (curl_url_set(url.get(), CURLUPART_URL, next.c_str(), 0) != CURLUE_OK)
      return refuse(kBadUrl, "the address is no URL");
    TRY(const Target target, check_url(url.get(), options));
    if (was_tls && !target.tls)
      return refuse(kBadUrl, fmt::format("https leads back to http at {}", target.host));
    was_tls = target.tls;
    TRY(const CurlList pinned, pin(target, options));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return refuse(kFailed, "the time is over");

    const CurlEasy easy(curl_easy_init(), &curl_easy_cleanup);
    ENSURE(easy != nullptr);
    Hop hop{options, false, {}, {}, 0, false};
    set_up(easy.get(), target, hop, left);
    if (pinned) set(easy.get(), CURLOPT_RESOLVE, pinned.get());
    if (const CURLcode code = curl_easy_perform(easy.get()); code != CURLE_OK)
      return failure(code, target, hop);
    TRY(const Answer answer, read_answer(easy.get(), target));
    if (answer.redirect.empty()) {
      TRY(const auto info, media::read_image_header(hop.body, options.image));
      char* peer = nullptr;
      curl_easy_getinfo(easy.get(), CURLINFO_PRIMARY_IP, &peer);
      const auto address = parse_ip(peer == nullptr ? "" : peer);
      ENSURE(address);
      return FetchedImage{target.url, *address, redirects, std::move(hop.body), info};
    }
    next = answer.redirect;
  }
  return refuse(kFailed, fmt::format("more than {} redirects", options.redirects_max));
}

}  // namespace penstock
