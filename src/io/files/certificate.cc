#include "io/files/certificate.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Bytes kPemMax{1 << 20};

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

Bio memory_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Never asks on the terminal for the passphrase of an encrypted key.
int no_passphrase(char*, int, int, void*) {
  return 0;
}

std::string subject_of(const X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  char* text = nullptr;
  const auto size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<std::size_t>(size));
}

}  // namespace

Result<CertificateInfo> check_certificate(const std::string& cert_path,
                                          const std::string& key_path) {
  TRY(const auto cert_text, read_file(cert_path, kPemMax));
  TRY(const auto key_text, read_secret_file(key_path, kPemMax));
  const Certificate certificate(
      PEM_read_bio_X509(memory_of(cert_text).get(), nullptr, no_passphrase, nullptr));
  const Key key(
      PEM_read_bio_PrivateKey(memory_of(key_text).get(), nullptr, no_passphrase, nullptr));
  const bool match =
      certificate && key && X509_check_private_key(certificate.get(), key.get()) == 1;
  int days = 0;
  int seconds = 0;
  const bool dated = certificate && ASN1_TIME_diff(&days, &seconds, nullptr,
                                                   X509_get0_notAfter(certificate.get())) == 1;
  ERR_clear_error();
  if (!certificate)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds no certificate in PEM form", cert_path), "listen.tls_cert");
  if (!key)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds no unencrypted private key in PEM form", key_path),
                "listen.tls_key");
  if (!match)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the key {} does not belong to the certificate {}", key_path, cert_path),
        "listen.tls_key");
  if (!dated)
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} has no valid end date", cert_path),
                "listen.tls_cert");
  return CertificateInfo{subject_of(certificate.get()), seconds < 0 ? days - 1 : days};
}

}  // namespace penstock
