// Addresses people give and see: is the port free, what is the URL.
// Concurrency: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace penstock {

// Fails with kConflict when something listens there, kIo for an address this machine does not have
// or a port that needs more rights. Port 0 is always free.
Status check_port_free(const std::string& host, std::uint32_t port);

// "http://127.0.0.1:8080"; IPv6 in brackets.
std::string listen_url(const std::string& host, std::uint32_t port, bool tls);

}  // namespace penstock
