#include "app/operator_access.h"

#include <fmt/format.h>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>

#include "app/entropy.h"
#include "app/listen_address.h"
#include "io/files/files.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr Bytes kFileMax{4096};

std::string path_in(const Options& options) {
  return options.data_dir + "/run/gateway.json";
}

// Where a listener on all interfaces is reached from here.
std::string reachable(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

std::string token_in(const std::string& path) {
  const auto text = read_file(path, kFileMax);
  boost::system::error_code error;
  const json::value parsed = json::parse(text ? *text : std::string(), error);
  const json::object* const file = error ? nullptr : parsed.if_object();
  const json::value* const token = file == nullptr ? nullptr : file->if_contains("token");
  return token != nullptr && token->is_string() ? std::string(token->as_string()) : std::string();
}

}  // namespace

OperatorAccess::OperatorAccess() {
  for (const std::uint8_t byte : draw_secret())
    token_ += fmt::format("{:02x}", byte);
}

OperatorAccess::~OperatorAccess() {
  if (path_.empty() || token_in(path_) != token_) return;
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

Status OperatorAccess::grant(const Options& options, std::uint16_t port) {
  TRY_STATUS(make_directories(options.data_dir + "/run", 0700));
  const std::string url = listen_url(reachable(options.host), port, !options.tls_cert.empty());
  TRY_STATUS(write_file_atomically(
      path_in(options), json::serialize(json::object{{"url", url}, {"token", token_}}), 0600));
  path_ = path_in(options);
  return {};
}

bool OperatorAccess::holds(std::string_view token) const {
  if (token.size() != token_.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < token.size(); ++i)
    different |= static_cast<unsigned char>(token[i]) ^ static_cast<unsigned char>(token_[i]);
  return different == 0;
}

Result<ApiTarget> find_gateway(const Options& options) {
  const std::string path = path_in(options);
  auto text = read_secret_file(path, kFileMax);
  if (!text && text.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("no gateway runs with the data folder {}; start one, or give its "
                            "folder with --data-dir",
                            options.data_dir),
                "data.dir");
  }
  if (!text) return std::unexpected(std::move(text).error());
  boost::system::error_code error;
  const json::value parsed = json::parse(*text, error);
  const json::object* const file = error ? nullptr : parsed.if_object();
  const json::value* const url = file == nullptr ? nullptr : file->if_contains("url");
  if (url == nullptr || !url->is_string())
    return fail(ErrorCode::kDataLoss, fmt::format("{} is not what a gateway writes", path));
  ApiTarget target;
  target.url = std::string(url->as_string());
  target.key = token_in(path);
  target.verify_certificate = false;  // it is made for another name than this machine's address
  return target;
}

}  // namespace penstock
