// A TLS certificate and its key, looked at before a server needs them.
// Errors: kInvalidArgument naming the file and what is wrong (not PEM, key of another certificate,
// encrypted key); kIo, kNotFound, kPermissionDenied from reading. Concurrency: any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock {

struct CertificateInfo {
  std::string subject;  // "CN=example.org"
  int days_left = 0;    // negative when it has expired
};

// Reads both files and checks that they belong together.
Result<CertificateInfo> check_certificate(const std::string& cert_path,
                                          const std::string& key_path);

}  // namespace penstock
