#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "io/http/client.h"
#include "io/http/server.h"
#include "io/http/test_server.h"

#include <doctest/doctest.h>

namespace penstock::http {
namespace {

// A folder with a self-signed certificate for 127.0.0.1, gone at the end of the test.
class Certificate {
 public:
  Certificate() {
    char folder[] = "/tmp/penstock_tls_XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    folder_ = folder;
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME* name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("penstock"), -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_EXTENSION* alt =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(cert, alt, -1);
    X509_sign(cert, key, EVP_sha256());
    write(cert_file(), [&](FILE* f) { PEM_write_X509(f, cert); });
    write(key_file(),
          [&](FILE* f) { PEM_write_PrivateKey(f, key, nullptr, nullptr, 0, nullptr, nullptr); });
    X509_EXTENSION_free(alt);
    X509_free(cert);
    EVP_PKEY_free(key);
  }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;
  ~Certificate() { std::filesystem::remove_all(folder_); }

  std::string cert_file() const { return folder_ + "/cert.pem"; }
  std::string key_file() const { return folder_ + "/key.pem"; }

 private:
  template <typename F>
  static void write(const std::string& path, F print) {
    FILE* file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    print(file);
    std::fclose(file);
  }
  std::string folder_;
};

ServerOptions with(const std::string& cert, const std::string& key) {
  ServerOptions options;
  options.tls_cert_file = cert;
  options.tls_key_file = key;
  return options;
}

Task<void> answer(std::unique_ptr<HttpExchange> exchange) {
  if (exchange->request().path != "/stream") {
    HttpResponse response;
    response.body = exchange->request().body;
    co_await exchange->respond(std::move(response));
    co_return;
  }
  exchange->begin_stream(200, "text/event-stream", {});
  for (int i = 0; i < 3; ++i) {
    if (!co_await exchange->write("data: x\n\n")) co_return;
  }
  co_await exchange->finish();
}

}  // namespace

TEST_CASE("https: whole answers, streams, certificates checked, plain text refused") {
  const Certificate certificate;
  TestServer server(with(certificate.cert_file(), certificate.key_file()), answer);
  ClientRequest request;
  request.method = "POST";
  request.url = "https://127.0.0.1:" + std::to_string(server.port()) + "/";
  request.body = std::string(3 << 20, 'y');
  request.ca_file = certificate.cert_file();
  const auto whole = send(request);
  REQUIRE_MESSAGE(whole.has_value(), to_string(whole.error()));
  CHECK(whole->body == request.body);
  request.url += "stream";
  const auto stream = send(request);
  REQUIRE_MESSAGE(stream.has_value(), to_string(stream.error()));
  CHECK(stream->body == "data: x\n\ndata: x\n\ndata: x\n\n");
  request.ca_file.clear();
  CHECK(send(request).error().code == ErrorCode::kUnavailable);
  request.verify_certificate = false;
  CHECK(send(request).has_value());
  RawClient plain(server.port());
  REQUIRE(plain.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n"));
  plain.read_to_end();
  CHECK_FALSE(plain.received.contains("HTTP/1.1 200"));
  CHECK(server.until([](const ServerCounters& c) { return c.tls_failures >= 2; }));
  CHECK(server.until([](const ServerCounters& c) { return c.connections_now == 0; }));
}

TEST_CASE("https: a client that goes away is noticed") {
  const Certificate certificate;
  OneShot<bool>* waiting = nullptr;
  bool gone = false;
  TestServer server(with(certificate.cert_file(), certificate.key_file()),
                    [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
                      OneShot<bool> shot;
                      waiting = &shot;
                      exchange->on_disconnect([&] { shot.set(true); });
                      gone = co_await shot;
                    });
  ClientRequest request;
  request.url = "https://127.0.0.1:" + std::to_string(server.port()) + "/";
  request.verify_certificate = false;
  request.idle_timeout = std::chrono::milliseconds(50);
  CHECK(send(request).error().code == ErrorCode::kDeadlineExceeded);
  server.drain();
  CHECK(gone);
}

TEST_CASE("https: bad certificate files are named") {
  const Certificate certificate;
  const Certificate other;
  boost::asio::io_context context;
  AsioClock clock(context);
  const auto error = [&](const std::string& cert, const std::string& key) {
    const auto server = HttpServer::start(clock, with(cert, key), answer);
    REQUIRE_FALSE(server.has_value());
    return server.error().message;
  };
  const auto garbage = certificate.cert_file() + ".garbage";
  std::ofstream(garbage) << "-----BEGIN CERTIFICATE-----\nxx\n";
  CHECK(error(certificate.cert_file(), "").contains("the key file is missing"));
  CHECK(error("", certificate.key_file()).contains("the certificate file is missing"));
  CHECK(error("/nonexistent/c.pem", certificate.key_file()).contains("/nonexistent/c.pem"));
  CHECK(error(garbage, certificate.key_file()).contains("no PEM certificate chain"));
  CHECK(error(certificate.cert_file(), garbage).contains("no PEM private key"));
  CHECK(error(certificate.cert_file(), other.key_file()).contains("belongs to the certificate"));
}

}  // namespace penstock::http
