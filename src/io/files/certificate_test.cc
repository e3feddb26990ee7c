#include "io/files/certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

std::string take(BIO* bio) {
  char* text = nullptr;
  const auto size = BIO_get_mem_data(bio, &text);
  std::string out(text, static_cast<std::size_t>(size));
  BIO_free(bio);
  return out;
}

struct Pair {
  std::string cert;
  std::string key;
};

Pair make_pair(long seconds) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -1'000'000);
  X509_gmtime_adj(X509_getm_notAfter(cert), seconds);
  X509_set_pubkey(cert, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("example.org"), -1, -1, 0);
  X509_set_issuer_name(cert, X509_get_subject_name(cert));
  X509_sign(cert, key, EVP_sha256());
  BIO* cert_out = BIO_new(BIO_s_mem());
  BIO* key_out = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(cert_out, cert);
  PEM_write_bio_PrivateKey(key_out, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(cert);
  EVP_PKEY_free(key);
  return {take(cert_out), take(key_out)};
}

}  // namespace

TEST_CASE("a certificate and its key are checked together") {
  const auto folder = TemporaryDirectory::make("penstock-certificate").value();
  const std::string cert = folder.path() + "/cert.pem";
  const std::string key = folder.path() + "/key.pem";
  const auto put = [&](const std::string& c, const std::string& k, unsigned mode = 0600) {
    REQUIRE(write_file_atomically(cert, c));
    REQUIRE(write_file_atomically(key, k, mode));
    return check_certificate(cert, key);
  };
  const auto good = make_pair(10 * 86400 + 100);
  const auto info = put(good.cert, good.key);
  REQUIRE_MESSAGE(info, info.error().message);
  CHECK(info->subject == "CN = example.org");
  CHECK(info->days_left == 10);
  const auto expired = make_pair(-100);
  CHECK(put(expired.cert, expired.key)->days_left < 0);

  struct Case {
    std::string cert;
    std::string key;
    std::string_view message;
  };
  const auto other = make_pair(1000);
  for (const auto& c : {
           Case{good.cert, other.key, "does not belong to"},
           Case{"nonsense", good.key, "cert.pem holds no certificate"},
           Case{"", good.key, "cert.pem holds no certificate"},
           Case{good.cert, good.cert, "key.pem holds no unencrypted private key"},
           Case{good.cert.substr(0, good.cert.size() / 2), good.key, "holds no certificate"},
       }) {
    const auto result = put(c.cert, c.key);
    REQUIRE(!result);
    CHECK_MESSAGE(result.error().message.find(c.message) != std::string::npos,
                  result.error().message);
  }
  const auto open = put(good.cert, good.key, 0644);
  REQUIRE(!open);
  CHECK(open.error().code == ErrorCode::kPermissionDenied);
  CHECK(check_certificate(folder.path() + "/none", key).error().code == ErrorCode::kNotFound);
}

}  // namespace penstock
