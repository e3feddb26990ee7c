// Fetches an image from an address that a stranger named, and nothing else from anywhere else.
//
// Each hop is a new connection with a fresh look at the URL: http or https, ports 80 and 443, no
// credentials. The name is resolved once a hop, and the very address about to be connected to is
// judged when its socket is opened, so no second answer of the name server can slip between check
// and use. Redirects are followed here, never by the library; https never leads back to http. No
// proxy, cookie, credential or compression; certificates are verified. The bytes must begin like
// an image within the limits (core/media); decoding is the caller's.
//
// Errors: kInvalidArgument with code invalid_image_url for what will never be fetched,
// failed_to_download_image for what could not be, or a code of core/media; messages name hosts and
// kinds of addresses, but nothing of an answer's content. Concurrency: fetch_image() blocks its
// thread for time_max at most; the caller's pool is the limit of how many run. Calls are
// independent. Source: CVE-2025-6242 and its like (facts/api.md 5.7); libcurl-security(3).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "core/media/image_header.h"
#include "io/fetch/address.h"

namespace penstock {

struct ImageFetchOptions {
  media::ImageLimits image;
  Duration time_max = std::chrono::seconds(10);  // all hops together
  std::uint32_t redirects_max = 3;
  std::vector<std::uint16_t> ports = {80, 443};
  // Why this address must not be connected to; empty when it may be.
  std::function<std::string_view(const IpAddress&)> refuse = why_not_public;
  // The addresses of a host; empty: the system's resolver, within time_max.
  std::function<std::vector<IpAddress>(const std::string& host)> resolve;
};

struct FetchedImage {
  std::string url;  // after redirects
  IpAddress address;
  std::uint32_t redirects = 0;
  std::string bytes;
  media::ImageInfo info;
};

Result<FetchedImage> fetch_image(const std::string& url, const ImageFetchOptions& options = {});

}  // namespace penstock
