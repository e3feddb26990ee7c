// penstock kv export and import.
#include <fmt/format.h>
#include <unistd.h>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "app/commands.h"
#include "app/console.h"
#include "app/kv_transfer.h"
#include "app/values.h"
#include "core/kvcache/key_chain.h"
#include "io/files/kv_secret.h"

namespace penstock {
namespace {

constexpr Duration kHelloTimeout = std::chrono::seconds(5);
constexpr Duration kFlushTimeout = std::chrono::hours(1);
constexpr std::uint64_t kImportBatchBytes = std::uint64_t{16} << 20;

std::string transfer_text(std::string_view what, const KvTransferResult& result) {
  std::string out =
      fmt::format("{} blocks of {} scopes {} ({})\n", result.blocks, result.roots, what,
                  describe_bytes(Bytes(static_cast<std::int64_t>(result.bytes))));
  for (const auto& [why, blocks] : result.skipped)
    out += fmt::format("{} blocks left out: {}\n", blocks, why);
  return out;
}

Result<int> print_transfer(const Options& options, std::string_view what,
                           const KvTransferResult& result) {
  if (!options.json) return print_data(transfer_text(what, result));
  boost::json::object skipped;
  for (const auto& [why, blocks] : result.skipped)
    skipped[why] = blocks;
  return print_data(
      pretty_json(boost::json::serialize(boost::json::object{{"file", options.words[1]},
                                                             {"roots", result.roots},
                                                             {"blocks", result.blocks},
                                                             {"bytes", result.bytes},
                                                             {"skipped", std::move(skipped)}})));
}

// A bar that learns its total as it goes.
KvTransferProgress bar(std::string what) {
  auto shown = std::make_shared<std::unique_ptr<ProgressBar>>();
  return [shown, what = std::move(what)](std::uint64_t done, std::uint64_t total) {
    if (*shown == nullptr) *shown = std::make_unique<ProgressBar>(what, total);
    (*shown)->update(done);
  };
}

}  // namespace

Result<int> run_kv_transfer(const Options& options) {
  const bool is_export = options.words[0] == "export";
  if (options.words.size() != 2) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("give a file: `penstock kv {} FILE`", options.words[0]));
  }
  TRY(const auto secret, read_kv_secret(options.kv_secret_file));
  const BlockKey key_check = kvcache::KeyChain(secret).key_check();
  TRY(const auto session,
      kv::KvSession::connect(options.kv_socket, "worker", "penstock kv", key_check, kHelloTimeout));
  if (!is_export) {
    TRY(const KvTransferResult result,
        import_kv(*session, {options.words[1], key_check, kImportBatchBytes, bar("import")}));
    TRY_STATUS(session->admin("flush", "", kFlushTimeout));
    return print_transfer(options, "imported", result);
  }
  // What waits to be written counts as held, and can't be read from the files yet.
  TRY_STATUS(session->admin("flush", "", kFlushTimeout));
  std::unique_ptr<disk::SegmentReader> segments;
  if (::access((options.kv_dir + "/LOCK").c_str(), F_OK) == 0) {
    TRY(segments, disk::SegmentReader::open(options.kv_dir, options.kv_encryption_key_file));
  }
  TRY(const KvTransferResult result,
      export_kv(*session, {options.words[1], options.kv_scope_filter, key_check, segments.get(),
                           bar("export")}));
  return print_transfer(options, "exported", result);
}

}  // namespace penstock
