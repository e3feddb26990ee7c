#include "app/cluster_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "app/values.h"
#include "io/posix_store/posix_store.h"
#include "io/rados/rados_store.h"
#include "io/usrbio/usrbio_data.h"

namespace penstock {
namespace {

constexpr std::string_view kAll = "all";

// The names in a list such as "agent,chat".
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    names.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return names;
}

// "/etc/ceph/ceph.conf,user=client.kv,extents=POOL"
Result<rados::RadosStoreOptions> parse_rados(std::string_view text) {
  rados::RadosStoreOptions wanted;
  const std::vector<std::string> parts = split(text);
  if (parts.empty() || parts[0].empty())
    return fail(ErrorCode::kInvalidArgument, "rados: wants the path of a ceph.conf first");
  wanted.conf = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = std::min(parts[i].find('='), parts[i].size());
    const std::string_view name = std::string_view(parts[i]).substr(0, equals);
    std::string* const field = name == "user"        ? &wanted.user
                               : name == "keyring"   ? &wanted.keyring
                               : name == "extents"   ? &wanted.extents_pool
                               : name == "small"     ? &wanted.small_pool
                               : name == "namespace" ? &wanted.name_space
                                                     : nullptr;
    if (field == nullptr || equals == parts[i].size())
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("\"{}\" is none of user=, keyring=, extents=, small=, namespace=", parts[i]));
    *field = parts[i].substr(equals + 1);
  }
  return wanted;
}

struct Named {
  std::string kind;
  std::string rest;
};

Named parse_name(const std::string& text) {
  const std::size_t colon = text.find(':');
  return {text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
}

// Whether the text names a store; nothing is opened.
Status check_name(const std::string& text) {
  const Named named = parse_name(text);
  if (named.kind == "rados") {
    TRY_STATUS(parse_rados(named.rest));
    return {};
  }
  const bool is_folder = named.rest.starts_with('/');
  if ((named.kind == "posix" || named.kind == "3fs") && is_folder) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no store; there are posix:/FOLDER, 3fs:/FOLDER and "
                          "rados:FILE with the path of a ceph.conf",
                          text));
}

}  // namespace

Result<std::unique_ptr<BlockStore>> open_cluster_store(const std::string& text) {
  TRY_STATUS(check_name(text));
  const Named named = parse_name(text);
  if (named.kind == "rados") {
    TRY(auto wanted, parse_rados(named.rest));
    return rados::open_rados_store(std::move(wanted));
  }
  posix_store::PosixStoreOptions wanted;
  wanted.folder = named.rest;
  if (named.kind == "3fs") {
    usrbio::UsrbioOptions rings;
    rings.folder = named.rest;
    TRY(wanted.data, usrbio::open_usrbio(std::move(rings)));
  }
  return posix_store::PosixStore::open(std::move(wanted));
}

Result<std::vector<std::string>> rados_arguments(const std::string& text) {
  const Named named = parse_name(text);
  if (named.kind != "rados")
    return fail(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is no store on RADOS", text));
  TRY(const rados::RadosStoreOptions store, parse_rados(named.rest));
  std::vector<std::string> words = {"-c", store.conf,         "-n", store.user,
                                    "-p", store.extents_pool, "-N", store.name_space};
  if (!store.keyring.empty()) words.insert(words.end(), {"--keyring", store.keyring});
  return words;
}

Status check_cluster(const Options& options) {
  if (options.cluster_store.empty()) return {};
  if (const Status named = check_name(options.cluster_store); !named)
    return fail(named.error().code, named.error().message, "kv.cluster.store");
  if (options.cluster_classes == kAll) return {};
  for (const std::string& name : split(options.cluster_classes))
    if (find_assignment(options.kv_classes, name) == nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("there is no cache class \"{}\"; --kv-class makes one", name),
                  "kv.cluster.classes");
  return {};
}

service::ClusterTierOptions cluster_tier_options(const Options& options) {
  service::ClusterTierOptions wanted;
  const std::vector<std::string> written = split(options.cluster_classes);
  for (const Assignment& c : options.kv_classes) {
    const auto ttl = parse_duration(c.value).value();
    wanted.classes.push_back({c.name, std::chrono::duration_cast<std::chrono::seconds>(ttl)});
    wanted.written.push_back(options.cluster_classes == kAll ||
                             std::ranges::find(written, c.name) != written.end());
  }
  wanted.slice = std::chrono::duration_cast<std::chrono::seconds>(options.cluster_slice);
  wanted.fetch_limit = options.cluster_fetch_limit;
  wanted.bytes_max = static_cast<std::uint64_t>(options.cluster_size.value);
  return wanted;
}

}  // namespace penstock
