#include "io/fetch/image_fetch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/check.h"
#include "core/media/data_url.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

std::string gif() {
  return *media::decode_base64("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7", 1000);
}

// Answers each connection on 127.0.0.1 by the path asked for, then closes it.
class Server {
 public:
  Server() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ENSURE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    ENSURE(::listen(listener_, 16) == 0);
    ENSURE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    ::shutdown(listener_, SHUT_RDWR);  // ends accept()
    thread_.join();
    ::close(listener_);
  }

  std::string url(std::string_view path, std::string_view host = "good.test") const {
    return fmt::format("http://{}:{}{}", host, port, path);
  }
  void redirect(const std::string& path, const std::string& to, int status = 302) {
    answers[path] =
        fmt::format("HTTP/1.1 {} x\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", status, to);
  }
  void serve(const std::string& path, const std::string& head, const std::string& body) {
    answers[path] =
        fmt::format("HTTP/1.1 200 x\r\n{}Content-Length: {}\r\n\r\n", head, body.size()) + body;
  }

  std::uint16_t port = 0;
  std::map<std::string, std::string> answers;  // filled before the first request
  std::atomic<int> requests = 0;
  std::string last_request;  // read after the answer came

 private:
  void run() {
    for (;;) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      std::string request;
      char buffer[4096];
      while (!request.contains("\r\n\r\n")) {
        const auto n = ::recv(client, buffer, sizeof buffer, 0);
        if (n <= 0) break;
        request.append(buffer, static_cast<std::size_t>(n));
      }
      last_request = request;
      ++requests;
      const auto begin = request.find(' ');
      const auto path = begin == std::string::npos
                            ? std::string()
                            : request.substr(begin + 1, request.find(' ', begin + 1) - begin - 1);
      const auto found = answers.find(path);
      if (found != answers.end()) {
        ::send(client, found->second.data(), found->second.size(), MSG_NOSIGNAL);
        ::shutdown(client, SHUT_WR);
        while (::recv(client, buffer, sizeof buffer, 0) > 0) {
        }
      } else if (path == "/silent") {  // until the other side gives up
        while (::recv(client, buffer, sizeof buffer, 0) > 0) {
        }
      }
      ::close(client);
    }
  }
  int listener_;
  std::thread thread_;
};

// As in service, but that the test's server may be asked, under any name but evil.test.
ImageFetchOptions options_for(const Server& server) {
  ImageFetchOptions options;
  options.ports = {server.port};
  options.refuse = [](const IpAddress& address) {
    return address == *parse_ip("127.0.0.1") ? std::string_view() : why_not_public(address);
  };
  options.resolve = [](const std::string& host) {
    return std::vector{*parse_ip(host == "evil.test" ? "127.0.0.2" : "127.0.0.1")};
  };
  return options;
}

// "code: message", or "" when an image came.
std::string outcome(const std::string& url, const ImageFetchOptions& options) {
  const auto image = fetch_image(url, options);
  if (image) return {};
  CHECK(image.error().code == ErrorCode::kInvalidArgument);
  return image.error().openai_code + ": " + image.error().message;
}

}  // namespace

TEST_CASE("an image is fetched, and nothing of ours goes along") {
  Server server;
  server.serve("/i.gif?a=b", "Content-Type: image/gif\r\n", gif());
  server.serve("/untyped", "", gif());
  server.serve("/named-png", "Content-Type: image/png\r\n", gif());
  ::setenv("http_proxy", "http://127.0.0.1:1", 1);
  ::setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
  const auto image = fetch_image(server.url("/i.gif?a=b#part"), options_for(server));
  ::unsetenv("http_proxy");
  ::unsetenv("ALL_PROXY");
  REQUIRE(image);
  CHECK(image->bytes == gif());
  CHECK(image->info == media::ImageInfo{media::ImageType::kGif, 1, 1});
  CHECK(to_string(image->address) == "127.0.0.1");
  CHECK(image->redirects == 0);
  CHECK(server.last_request ==
        fmt::format("GET /i.gif?a=b HTTP/1.1\r\nHost: good.test:{}\r\nUser-Agent: penstock\r\n"
                    "Accept: */*\r\n\r\n",
                    server.port));
  CHECK(outcome(server.url("/untyped"), options_for(server)).empty());
  CHECK(fetch_image(server.url("/named-png"), options_for(server))->info.type ==
        media::ImageType::kGif);
}

TEST_CASE("hostile URLs never reach a socket") {
  Server server;
  server.serve("/", "", gif());
  auto options = options_for(server);
  options.ports.push_back(80);
  int resolved = 0;
  options.resolve = [&](const std::string&) {
    ++resolved;
    return std::vector{*parse_ip("127.0.0.1")};
  };
  const std::string port = std::to_string(server.port);
  for (const std::string& url : {
           std::string(),
           std::string("good.test"),
           std::string("//good.test/"),
           std::string("/etc/passwd"),
           std::string("file:///etc/passwd"),
           std::string("ftp://good.test/"),
           "gopher://good.test:" + port + "/_x",
           "dict://good.test:" + port + "/",
           std::string("data:image/gif;base64,AAAA"),
           std::string("javascript:alert(1)"),
           std::string("http://"),
           std::string("http:///"),
           std::string("http://good.test:22/"),
           std::string("http://good.test:0/"),
           std::string("http://good.test:65536/"),
           std::string("http://good.test:-1/"),
           std::string("https://good.test/"),  // 443 is not on the list here
           "http://user@good.test:" + port + "/",
           "http://user:password@good.test:" + port + "/",
           "http://:password@good.test:" + port + "/",
           "http://good.test:" + port + "@evil.test/",
           "http://good.test\\@evil.test:" + port + "/",
           "http://good.test%00.evil.test:" + port + "/",
           "http://good%2etest%20:" + port + "/",
           "http://g\xc3\xb6od.test:" + port + "/",
           "http://good.test :" + port + "/",
           "http://good.test\r\nX: y:" + port + "/",
           "http://[fe80::1%25lo]:" + port + "/",
           "http://[::1:" + port + "/",
           server.url("/" + std::string(2048, 'a')),
       }) {
    CAPTURE(url);
    CHECK(outcome(url, options).starts_with("invalid_image_url: "));
  }
  CHECK(server.requests == 0);
  CHECK(resolved == 0);
}

TEST_CASE("every spelling of a forbidden address is refused when its socket is opened") {
  Server server;
  server.serve("/", "", gif());
  ImageFetchOptions options;  // the policy of service, the system's resolver
  options.ports = {server.port};
  for (const std::string_view host : {"127.0.0.1",
                                      "localhost",
                                      "LOCALHOST",
                                      "127.1",
                                      "127.0.1",
                                      "2130706433",
                                      "0x7f000001",
                                      "0x7f.1",
                                      "0177.0.0.1",
                                      "017700000001",
                                      "0",
                                      "0.0.0.0",
                                      "[::1]",
                                      "[::]",
                                      "[::ffff:127.0.0.1]",
                                      "[::ffff:7f00:1]",
                                      "[0:0:0:0:0:0:0:1]",
                                      "[::127.0.0.1]",
                                      "[64:ff9b::7f00:1]",
                                      "169.254.169.254",
                                      "0xa9fea9fe",
                                      "[::ffff:169.254.169.254]",
                                      "[fd00:ec2::254]",
                                      "100.100.100.200",
                                      "168.63.129.16",
                                      "10.0.0.1",
                                      "192.168.1.1",
                                      "172.16.0.1",
                                      "224.0.0.1",
                                      "255.255.255.255",
                                      "[fe80::1]",
                                      "[ff02::1]",
                                      "[2002:7f00:1::]"}) {
    CAPTURE(host);
    const auto got = outcome(server.url("/", host), options);
    CHECK(got.starts_with("invalid_image_url: "));
    CHECK(got.contains(" must not be asked: "));
  }
  CHECK(server.requests == 0);
}

TEST_CASE("redirects are followed, three at most, each looked at anew") {
  Server server;
  server.serve("/i", "", gif());
  server.redirect("/1", "/i");
  server.redirect("/2", "1", 301);
  server.redirect("/3", server.url("/2", "other.test"), 308);
  server.redirect("/4", "/3", 307);
  server.redirect("/loop", "/loop", 303);
  const auto options = options_for(server);
  const auto image = fetch_image(server.url("/3"), options);
  REQUIRE(image);
  CHECK(image->redirects == 3);
  CHECK(image->url == server.url("/i", "other.test"));
  CHECK(outcome(server.url("/4"), options) == "failed_to_download_image: more than 3 redirects");
  CHECK(outcome(server.url("/loop"), options).contains("more than 3 redirects"));

  const std::pair<std::string, std::string_view> targets[] = {
      {"http://169.254.169.254:" + std::to_string(server.port) + "/", "is link-local"},
      {"http://[::1]:" + std::to_string(server.port) + "/", "is loopback"},
      {server.url("/i", "evil.test"), "127.0.0.2 is loopback"},
      {server.url("/i", "user:p@good.test"), "user or a password"},
      {"http://good.test:22/", "port 22 is not allowed"},
      {"file:///etc/passwd", "only http:// and https://"},
      {"//evil.test:" + std::to_string(server.port) + "/i", "127.0.0.2 is loopback"},
  };
  for (const auto& [to, why] : targets) {
    CAPTURE(to);
    Server first;
    first.redirect("/", to);
    auto both = options;
    both.ports.push_back(first.port);
    const int before = server.requests;
    const auto got = outcome(first.url("/"), both);
    CHECK(got.contains(why));
    CHECK(server.requests == before);
  }
}

TEST_CASE("a name that changes its address between two looks does not help") {
  Server server;
  server.serve("/i", "", gif());
  server.redirect("/again", "/i");
  auto options = options_for(server);
  int looks = 0;
  options.resolve = [&](const std::string&) {
    return std::vector{*parse_ip(++looks == 1 ? "127.0.0.1" : "127.0.0.2")};
  };
  CHECK(outcome(server.url("/i"), options).empty());
  CHECK(looks == 1);  // one look a hop, and the connection goes where it said
  looks = 0;
  CHECK(outcome(server.url("/again"), options).contains("127.0.0.2 is loopback"));
  CHECK(looks == 2);
  // Among several addresses only those that may be asked are.
  options.resolve = [&](const std::string&) {
    return std::vector{*parse_ip("10.0.0.1"), *parse_ip("127.0.0.1")};
  };
  CHECK(outcome(server.url("/i"), options).empty());
  options.resolve = [&](const std::string&) { return std::vector<IpAddress>{}; };
  CHECK(outcome(server.url("/i"), options).contains("has no address"));
}

TEST_CASE("limits of size, time, type and status") {
  Server server;
  server.serve("/i", "", gif());
  server.serve("/html", "Content-Type: text/html\r\n", "<p>secret</p>");
  server.serve("/octets", "Content-Type: application/octet-stream\r\n", "secret");
  server.serve("/empty", "", "");
  server.answers["/endless"] = "HTTP/1.1 200 x\r\n\r\n" + std::string(100'000, 'x');
  server.answers["/cut"] = "HTTP/1.1 200 x\r\nContent-Length: 1000\r\n\r\n" + gif();
  server.answers["/404"] = "HTTP/1.1 404 x\r\nContent-Length: 6\r\n\r\nsecret";
  server.answers["/nowhere"] = "HTTP/1.1 302 x\r\nContent-Length: 0\r\n\r\n";
  server.answers["/headers"] = "HTTP/1.1 200 x\r\nA: " + std::string(70'000, 'h') + "\r\n\r\n";
  auto options = options_for(server);
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"/html", "unsupported_image_media_type: "},
      {"/octets", "unsupported_image_media_type: "},
      {"/empty", "empty_image_file: "},
      {"/cut", "failed_to_download_image: "},
      {"/404", "failed_to_download_image: "},
      {"/nowhere", "failed_to_download_image: "},
      {"/headers", "failed_to_download_image: "},
  };
  for (const auto& [path, code] : cases) {
    CAPTURE(path);
    const auto got = outcome(server.url(path), options);
    CHECK(got.starts_with(code));
    CHECK(!got.contains("secret"));
  }
  options.image.bytes_max = gif().size();
  CHECK(outcome(server.url("/i"), options).empty());
  CHECK(outcome(server.url("/endless"), options).starts_with("image_file_too_large: "));
  options.image.bytes_max = gif().size() - 1;
  CHECK(outcome(server.url("/i"), options).starts_with("image_file_too_large: "));
  options.time_max = std::chrono::milliseconds(50);
  CHECK(outcome(server.url("/silent"), options).starts_with("failed_to_download_image: "));
}

}  // namespace penstock
