#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "app/kv_transfer.h"
#include "base/hash.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr Duration kQuestionTimeout = std::chrono::seconds(30);
constexpr Duration kFlushTimeout = std::chrono::hours(1);
constexpr Duration kLeaseBudget = std::chrono::seconds(30);
constexpr std::size_t kLookupNames = 4096;
constexpr std::size_t kKeysMax = std::size_t{1} << 16;  // of one acquire
constexpr std::uint64_t kDiskBit = 1U << static_cast<unsigned>(KvTier::kDisk);

// FILE.partial-PID, which becomes FILE at the end, or goes.
class NewFile {
 public:
  static Result<std::unique_ptr<NewFile>> make(const std::string& path) {
    if (::access(path.c_str(), F_OK) == 0) return exists(path);
    std::unique_ptr<NewFile> file(new NewFile(path));
    if (file->fd_ < 0) return file->failed("create");
    return file;
  }
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    ::unlink(partial_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed("write");
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }
  // A link, not a rename: a file that came in between is not overwritten.
  Status finish() {
    if (::fsync(fd_) != 0) return failed("write");
    if (::link(partial_.c_str(), path_.c_str()) == 0) return {};
    if (errno == EEXIST) return exists(path_);
    return failed("name");
  }

 private:
  explicit NewFile(std::string path)
      : path_(std::move(path)), partial_(fmt::format("{}.partial-{}", path_, ::getpid())) {
    fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }
  static std::unexpected<Error> exists(const std::string& path) {
    return fail(ErrorCode::kConflict,
                fmt::format("{} exists; remove it or name another file", path));
  }
  std::unexpected<Error> failed(std::string_view what) const {
    return fail(ErrorCode::kIo,
                fmt::format("cannot {} {}: {}", what, partial_, std::strerror(errno)));
  }

  std::string path_;
  std::string partial_;
  int fd_;
};

std::optional<BlockKey> parse_key(std::string_view digits) {
  BlockKey key;
  if (digits.size() != 2 * key.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < key.bytes.size(); ++i) {
    const std::string byte(digits.substr(2 * i, 2));
    key.bytes[i] = static_cast<std::uint8_t>(std::stoul(byte, nullptr, 16));
  }
  return key;
}

std::string hex(const BlockKey& key) {
  std::string out;
  for (const std::uint8_t byte : key.bytes)
    out += fmt::format("{:02x}", byte);
  return out;
}

std::vector<std::uint32_t> sizes(const json::value& list) {
  return json::value_to<std::vector<std::uint32_t>>(list);
}

class Exporter {
 public:
  Exporter(kv::KvSession& session, const KvExportOptions& options)
      : session_(session), options_(options) {}
  Result<KvTransferResult> run();

 private:
  struct InMemory {
    BlockInfo info;
    bool on_disk = false;
  };
  Result<json::value> list(json::object arguments);
  Status take_roots();
  Status take_memory(const BlockKey& root);
  Status take_disk();
  Status keep_held(std::vector<disk::StoredRecord>& records);
  bool wanted(const BlockKey& root) const { return wanted_.contains(root); }
  // Keys from depth 0 to this one; nothing when an ancestor is not known.
  std::optional<std::vector<BlockKey>> chain(const BlockName& name) const;
  const BlockInfo* find(const BlockName& name) const;
  Status write_memory();
  Status write_chain(const BlockKey& root, const std::vector<BlockKey>& keys);
  Result<bool> write_granted(const BlockKey& root, const std::vector<BlockKey>& keys,
                             const kv::Granted& granted, std::size_t& done);
  Status write_pinned(const BlockInfo& info, const kv::PinnedBlock& block);
  Status write_disk();
  Status write(const BlockInfo& info, std::span<const std::byte> payload);
  void skip(std::string_view why, std::uint64_t blocks = 1) {
    if (blocks > 0) result_.skipped[std::string(why)] += blocks;
  }

  kv::KvSession& session_;
  const KvExportOptions& options_;
  KvTransferResult result_;
  std::unique_ptr<NewFile> file_;
  kvcache::ExportWriter writer_;
  Mapping arena_;
  std::map<BlockKey, kvcache::ExportRoot> roots_;
  std::unordered_set<BlockKey> wanted_;
  std::unordered_map<BlockName, InMemory> memory_;
  std::unordered_map<BlockName, disk::StoredRecord> disk_;
  std::unordered_set<BlockName> held_;  // of those on disk, all roots
  std::uint64_t disk_blocks_ = 0;       // that the daemon says to hold
  std::unordered_set<BlockName> written_;
  std::uint64_t total_ = 0;
  kv::LeaseId lease_ = 0;
  std::uint64_t number_ = 0;
};

Result<json::value> Exporter::list(json::object arguments) {
  arguments["details"] = true;
  arguments["limit"] = 1000;
  TRY(const std::string text, session_.admin("ls", json::serialize(arguments), kQuestionTimeout));
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error) return fail(ErrorCode::kDataLoss, "the KV daemon's `ls` is no JSON");
  return value;
}

Status Exporter::take_roots() {
  for (json::object page;;) {
    TRY(const json::value answer, list(page));
    for (const json::value& row : answer.at("roots").as_array()) {
      const json::object& object = row.as_object();
      kvcache::ExportRoot root;
      root.root = parse_key(object.at("root").as_string()).value_or(BlockKey{});
      if (const auto* layout = object.if_contains("layout")) {
        root.scope = std::string(object.at("scope").as_string());
        root.build = std::string(object.at("build").as_string());
        root.layout = {layout->at("block_tokens").to_number<std::uint32_t>(),
                       sizes(layout->at("history_slices")), sizes(layout->at("window_slices")),
                       layout->at("window_tokens").to_number<std::uint32_t>()};
      }
      if (root.scope.find(options_.scope_filter) != std::string::npos) wanted_.insert(root.root);
      roots_.emplace(root.root, std::move(root));
    }
    if (answer.at("disk").is_object())
      disk_blocks_ = answer.at("disk").at("blocks").to_number<std::uint64_t>();
    if (answer.at("next").is_null()) return {};
    page = {{"after", answer.at("next")}};
  }
}

Status Exporter::take_memory(const BlockKey& root) {
  for (json::object page{{"root", hex(root)}};;) {
    TRY(const json::value answer, list(page));
    for (const json::value& row : answer.at("blocks").as_array()) {
      InMemory block;
      block.on_disk = row.at("on_disk").as_bool();
      block.info = {
          {parse_key(row.at("key").as_string()).value_or(BlockKey{}),
           row.at("group").as_string() == "window" ? KvGroup::kWindow : KvGroup::kHistory},
          parse_key(row.at("parent").as_string()).value_or(BlockKey{}),
          root,
          row.at("depth").to_number<std::uint32_t>(),
          row.at("class").to_number<TtlClass>(),
          std::stoull(std::string(row.at("tenant").as_string()), nullptr, 16),
          {}};
      memory_.emplace(block.info.name, std::move(block));
    }
    if (answer.at("next").is_null()) return {};
    page["first"] = answer.at("next");
  }
}

Status Exporter::take_disk() {
  if (options_.segments == nullptr) return {};
  std::vector<disk::StoredRecord> batch;
  Status status;
  const auto flush = [&] {
    if (status) status = keep_held(batch);
    batch.clear();
  };
  options_.segments->for_each([&](const disk::StoredRecord& record) {
    batch.push_back(record);
    if (batch.size() == kLookupNames) flush();
  });
  flush();
  TRY_STATUS(status);
  if (held_.size() >= disk_blocks_) return {};
  if (options_.segments->other_key() > 0) {
    return fail(ErrorCode::kPermissionDenied,
                fmt::format("{} segments are encrypted with another key than the one given, or "
                            "with one while none is given; use the KV daemon's",
                            options_.segments->other_key()),
                "kv.encryption_key_file");
  }
  skip("not_found_on_disk", disk_blocks_ - held_.size());
  return {};
}

// Of the records found, those that the daemon still holds.
Status Exporter::keep_held(std::vector<disk::StoredRecord>& records) {
  kv::Lookup question{++number_, {}};
  for (const disk::StoredRecord& record : records)
    question.names.push_back(record.info.name);
  TRY_STATUS(session_.send(question));
  for (;;) {
    TRY(auto message, session_.receive(kQuestionTimeout));
    if (!message) return fail(ErrorCode::kDeadlineExceeded, "the KV daemon does not answer");
    const auto* answer = std::get_if<kv::LookupAnswer>(&*message);
    if (answer == nullptr || answer->number != number_) continue;
    if (answer->tiers.size() != records.size())
      return fail(ErrorCode::kDataLoss, "the KV daemon answered what was not asked");
    for (std::size_t i = 0; i < records.size(); ++i) {
      const BlockInfo& info = records[i].info;
      if ((answer->tiers[i] & kDiskBit) == 0) continue;
      held_.insert(info.name);
      if (!roots_.contains(info.root)) {
        // Held from a former run; no worker has told its scope since.
        roots_.emplace(info.root, kvcache::ExportRoot{info.root, "", "", {}});
        if (options_.scope_filter.empty()) wanted_.insert(info.root);
      }
      if (!wanted(info.root)) continue;
      // Of two copies the later one is as good, and more likely to stay.
      disk_.insert_or_assign(info.name, records[i]);
    }
    return {};
  }
}

const BlockInfo* Exporter::find(const BlockName& name) const {
  if (const auto held = memory_.find(name); held != memory_.end()) return &held->second.info;
  if (const auto held = disk_.find(name); held != disk_.end()) return &held->second.info;
  return nullptr;
}

std::optional<std::vector<BlockKey>> Exporter::chain(const BlockName& name) const {
  std::vector<BlockKey> keys;
  BlockName at{name.key, KvGroup::kHistory};
  for (;;) {
    const BlockInfo* const info = find(at);
    if (info == nullptr || keys.size() == kKeysMax) return std::nullopt;
    keys.push_back(at.key);
    if (info->depth == 0) break;
    at.key = info->parent;
  }
  std::ranges::reverse(keys);
  return keys;
}

// The deepest ones first: their chains bring the others.
Status Exporter::write_memory() {
  std::vector<const BlockInfo*> only;
  for (const auto& [name, block] : memory_)
    if (!disk_.contains(name)) only.push_back(&block.info);
  std::ranges::sort(only, [](const BlockInfo* a, const BlockInfo* b) {
    return a->depth != b->depth ? a->depth > b->depth : a->name < b->name;
  });
  for (const BlockInfo* const info : only) {
    if (written_.contains(info->name)) continue;
    if (roots_.at(info->root).layout.history_slices.empty()) {
      skip("unknown_layout");
      continue;
    }
    const auto keys = chain(info->name);
    if (!keys) {
      skip("parent_gone");
      continue;
    }
    TRY_STATUS(write_chain(info->root, *keys));
    if (!written_.contains(info->name)) skip("gone");
  }
  return {};
}

Status Exporter::write_chain(const BlockKey& root, const std::vector<BlockKey>& keys) {
  kv::Acquire wanted{++lease_, root, keys, {}, 0, "kv export", 0, 0, kLeaseBudget};
  for (std::uint32_t depth = 0; depth < keys.size(); ++depth)
    if (find({keys[depth], KvGroup::kWindow}) != nullptr) wanted.windows.push_back(depth);
  TRY_STATUS(session_.send(wanted));
  std::size_t done = 0;  // history blocks granted
  for (bool final = false; !final;) {
    TRY(auto message, session_.receive(2 * kLeaseBudget));
    if (!message) return fail(ErrorCode::kDeadlineExceeded, "the KV daemon does not answer");
    const auto* granted = std::get_if<kv::Granted>(&*message);
    if (granted == nullptr || granted->lease != lease_) continue;
    TRY(final, write_granted(root, keys, *granted, done));
  }
  return session_.send(kv::Release{lease_});
}

Result<bool> Exporter::write_granted(const BlockKey& root, const std::vector<BlockKey>& keys,
                                     const kv::Granted& granted, std::size_t& done) {
  const auto info_of = [&](std::size_t depth, KvGroup group) {
    const BlockInfo* const known = find({keys[depth], group});
    BlockInfo info = known != nullptr ? *known : BlockInfo{};
    info.name = {keys[depth], group};
    info.parent = depth == 0 ? root : keys[depth - 1];
    info.root = root;
    info.depth = static_cast<std::uint32_t>(depth);
    return info;
  };
  for (const kv::PinnedBlock& block : granted.history) {
    if (done == keys.size()) return fail(ErrorCode::kDataLoss, "the KV daemon granted too much");
    TRY_STATUS(write_pinned(info_of(done++, KvGroup::kHistory), block));
    TRY_STATUS(session_.send(kv::Alive{}));
  }
  for (const auto& [depth, block] : granted.windows) {
    if (depth < done) TRY_STATUS(write_pinned(info_of(depth, KvGroup::kWindow), block));
  }
  return granted.final;
}

Status Exporter::write_pinned(const BlockInfo& info, const kv::PinnedBlock& block) {
  if (written_.contains(info.name)) return {};
  const auto& slices = roots_.at(info.root).layout.slices(info.name.group);
  const std::uint64_t bytes = roots_.at(info.root).layout.bytes(info.name.group);
  const auto arena = std::as_bytes(arena_.memory());
  if (block.checksums.size() != slices.size() || bytes > arena.size() ||
      block.offset > arena.size() - bytes) {
    return fail(ErrorCode::kDataLoss, "the KV daemon granted blocks of another layout");
  }
  // Verified on a copy: the arena may change, the copy not.
  std::vector<std::byte> payload(arena.begin() + static_cast<std::ptrdiff_t>(block.offset),
                                 arena.begin() + static_cast<std::ptrdiff_t>(block.offset + bytes));
  BlockInfo whole = info;
  std::span<const std::byte> rest = payload;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    whole.slices.push_back({slices[i], block.checksums[i]});
    if (checksum64(rest.first(slices[i])) != block.checksums[i]) {
      skip("corrupt");
      return session_.send(kv::Report{lease_, info.name});
    }
    rest = rest.subspan(slices[i]);
  }
  return write(whole, payload);
}

Status Exporter::write_disk() {
  std::vector<const disk::StoredRecord*> records;
  for (const auto& [name, record] : disk_)
    if (!written_.contains(name)) records.push_back(&record);
  // Ancestors first, a window after its block; else as they lie on the disk.
  std::ranges::sort(records, [](const auto* a, const auto* b) {
    const auto rank = [](const disk::StoredRecord& r) {
      return std::tuple(r.info.depth, r.info.name.group, r.segment, r.unit);
    };
    return rank(*a) < rank(*b);
  });
  std::vector<std::byte> payload;
  for (const disk::StoredRecord* const record : records) {
    BlockInfo info;
    const MissReason reason = options_.segments->read(*record, info, payload);
    if (reason != MissReason::kNone) {
      skip(to_string(reason));
      continue;
    }
    TRY_STATUS(write(info, payload));
  }
  return {};
}

Status Exporter::write(const BlockInfo& info, std::span<const std::byte> payload) {
  if (payload.size() > kvcache::kExportPayloadMax) {
    skip("too_large");
    return {};
  }
  std::string item;
  writer_.block(info, item);
  TRY_STATUS(file_->write(std::as_bytes(std::span(item))));
  TRY_STATUS(file_->write(payload));
  written_.insert(info.name);
  if (options_.progress) options_.progress(written_.size(), total_);
  return {};
}

Result<KvTransferResult> Exporter::run() {
  TRY(file_, NewFile::make(options_.file));
  TRY(arena_, session_.map_arena());
  TRY_STATUS(session_.admin("flush", "", kFlushTimeout));
  TRY_STATUS(take_roots());
  for (const BlockKey& root : wanted_)
    TRY_STATUS(take_memory(root));
  TRY_STATUS(take_disk());
  total_ = disk_.size();
  for (const auto& [name, block] : memory_)
    total_ += disk_.contains(name) ? 0 : 1;

  kvcache::ExportHead head{options_.key_check, {}};
  for (const TtlClassSpec& c : session_.welcome().classes)
    head.classes.push_back(c.name);
  std::string items;
  writer_.head(head, items);
  for (const auto& [key, root] : roots_)
    if (wanted(key)) writer_.root(root, items);
  TRY_STATUS(file_->write(std::as_bytes(std::span(items))));
  TRY_STATUS(write_memory());
  TRY_STATUS(write_disk());
  std::string end;
  writer_.end(end);
  TRY_STATUS(file_->write(std::as_bytes(std::span(end))));
  TRY_STATUS(file_->finish());
  result_.roots = writer_.totals().roots;
  result_.blocks = writer_.totals().blocks;
  result_.bytes = writer_.totals().bytes;
  return std::move(result_);
}

}  // namespace

Result<KvTransferResult> export_kv(kv::KvSession& session, const KvExportOptions& options) {
  try {
    return Exporter(session, options).run();
  } catch (const std::exception& error) {  // JSON of another shape than this build's
    return fail(ErrorCode::kDataLoss,
                fmt::format("the KV daemon's answer makes no sense: {}", error.what()));
  }
}

}  // namespace penstock
