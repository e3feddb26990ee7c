#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "app/kv_transfer.h"

namespace penstock {
namespace {

constexpr Duration kStoreTimeout = std::chrono::minutes(2);
constexpr std::size_t kPoolsMax = 16;  // layouts; what a daemon takes of one session
constexpr std::size_t kBatchBlocks = 1024;

struct InputFile {
  Descriptor fd;
  Mapping mapping;
  std::span<const std::byte> bytes() const { return mapping.memory(); }
};

Result<InputFile> open_input(const std::string& path) {
  InputFile file{Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), {}};
  struct stat status{};
  if (file.fd.get() < 0 || ::fstat(file.fd.get(), &status) != 0) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode) || status.st_size == 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is no export of a KV cache", path));
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const base = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (base == MAP_FAILED) {
    return fail(ErrorCode::kIo, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  file.mapping = Mapping({static_cast<std::byte*>(base), bytes});
  return file;
}

// A root as it is offered: its pool, if its layout is known or can be told from its blocks.
struct OfferedRoot {
  kvcache::ExportRoot root;
  bool told = false;  // its layout was in the file
  std::uint32_t pool = 0;
};

class Importer {
 public:
  Importer(kv::KvSession& session, const KvImportOptions& options)
      : session_(session), options_(options) {}
  Result<KvTransferResult> run();

 private:
  // Calls `visit` for each item; the file is whole when it succeeds.
  template <typename Visit>
  Status walk(std::span<const std::byte> file, Visit visit) const;
  Status look(const kvcache::ExportItem& item);
  Status make_pool();
  Status register_layouts();
  Status offer(const kvcache::ExportBlock& block);
  Status flush();

  kv::KvSession& session_;
  const KvImportOptions& options_;
  KvTransferResult result_;
  std::map<BlockKey, OfferedRoot> roots_;
  std::vector<TtlClass> classes_;  // of the file: number here
  std::uint64_t largest_ = 0;      // payload
  std::vector<KvLayoutSpec> layouts_;
  Descriptor pool_fd_;
  Mapping pool_;
  kv::Store batch_;
  std::vector<std::uint64_t> sizes_;  // of the blocks of the batch
  std::uint64_t used_ = 0;            // of the pool
};

template <typename Visit>
Status Importer::walk(std::span<const std::byte> file, Visit visit) const {
  kvcache::ExportParser parser;
  const auto named = [&](Error error) {
    error.message = fmt::format("{} {}", options_.file, error.message);
    return std::unexpected(std::move(error));
  };
  while (!parser.ended()) {
    auto step = parser.next(file.subspan(parser.offset()));
    if (!step) return named(std::move(step).error());
    if (!step->item) {
      return named({ErrorCode::kDataLoss,
                    fmt::format("is cut off: it ends at byte {}, within the item that begins at "
                                "byte {}",
                                file.size(), parser.offset()),
                    {},
                    {}});
    }
    TRY_STATUS(visit(*step->item, parser.offset()));
  }
  if (parser.offset() == file.size()) return {};
  return named({ErrorCode::kDataLoss,
                fmt::format("goes on after its end at byte {}", parser.offset()),
                {},
                {}});
}

Status Importer::look(const kvcache::ExportItem& item) {
  if (const auto* head = std::get_if<kvcache::ExportHead>(&item)) {
    if (head->key_check != options_.key_check) {
      return fail(ErrorCode::kConflict,
                  fmt::format("{} was exported under another secret, so that none of its blocks "
                              "would ever be found here; use that secret file",
                              options_.file),
                  "kv.secret_file");
    }
    const auto& here = session_.welcome().classes;
    for (const std::string& name : head->classes) {
      const auto found = std::ranges::find(here, name, &TtlClassSpec::name);
      classes_.push_back(found == here.end() ? TtlClass{0}
                                             : static_cast<TtlClass>(found - here.begin()));
    }
  } else if (const auto* root = std::get_if<kvcache::ExportRoot>(&item)) {
    roots_.emplace(root->root, OfferedRoot{*root, !root->layout.history_slices.empty(), 0});
  } else if (const auto* block = std::get_if<kvcache::ExportBlock>(&item)) {
    largest_ = std::max<std::uint64_t>(largest_, block->payload.size());
    OfferedRoot& of = roots_[block->info.root];
    of.root.root = block->info.root;
    if (of.told) return {};
    // Blocks of a root that nobody has told are alike, too.
    auto& layout = of.root.layout;
    auto& slices =
        block->info.name.group == KvGroup::kHistory ? layout.history_slices : layout.window_slices;
    if (!slices.empty()) return {};
    // Enough for a pool to be sound; the root itself is not told to the daemon.
    if (block->info.name.group == KvGroup::kWindow) layout.window_tokens = layout.block_tokens;
    for (const SliceSum& slice : block->info.slices)
      slices.push_back(slice.bytes);
  }
  return {};
}

Status Importer::make_pool() {
  const std::uint64_t bytes = std::max(options_.batch_bytes, largest_);
  pool_fd_ = Descriptor(::memfd_create("penstock-kv-import", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (pool_fd_.get() < 0 || ::ftruncate(pool_fd_.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(pool_fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot get memory to offer blocks from: {}", std::strerror(errno)));
  }
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd_.get(), 0);
  if (base == MAP_FAILED) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot map memory to offer blocks from: {}", std::strerror(errno)));
  }
  pool_ = Mapping({static_cast<std::byte*>(base), bytes});
  return {};
}

Status Importer::register_layouts() {
  for (auto& [key, of] : roots_) {
    if (of.root.layout.history_slices.empty()) continue;  // no block of it can be stored
    const auto known = std::ranges::find(layouts_, of.root.layout);
    of.pool = static_cast<std::uint32_t>(known - layouts_.begin());
    if (known == layouts_.end()) {
      layouts_.push_back(of.root.layout);
      if (of.pool < kPoolsMax) {
        TRY_STATUS(session_.send(kv::RegisterPool{of.pool, pool_.memory().size(), of.root.layout},
                                 pool_fd_.get()));
      }
    }
    if (of.told) {
      TRY_STATUS(session_.send(
          kv::RegisterRoot{of.root.root, of.root.scope, of.root.build, of.root.layout}));
    }
  }
  return {};
}

Status Importer::offer(const kvcache::ExportBlock& block) {
  const BlockInfo& info = block.info;
  const OfferedRoot& of = roots_.at(info.root);
  const auto& slices = of.root.layout.slices(info.name.group);
  const bool fits =
      !of.root.layout.history_slices.empty() && of.pool < kPoolsMax &&
      std::ranges::equal(slices, info.slices, {}, {}, [](const SliceSum& s) { return s.bytes; });
  if (!fits) {
    ++result_.skipped[of.pool < kPoolsMax ? "other_layout" : "too_many_layouts"];
    return {};
  }
  const TtlClass ttl_class = info.ttl_class < classes_.size() ? classes_[info.ttl_class] : 0;
  const bool joins = batch_.root == info.root && batch_.ttl_class == ttl_class &&
                     batch_.tenant == info.tenant && batch_.blocks.size() < kBatchBlocks &&
                     pool_.memory().size() - used_ >= block.payload.size();
  if (!joins) TRY_STATUS(flush());
  batch_.pool = of.pool;
  batch_.root = info.root;
  batch_.ttl_class = ttl_class;
  batch_.tenant = info.tenant;
  kv::StoreBlock offered{info.name, info.parent, info.depth, {}};
  std::memcpy(pool_.memory().data() + used_, block.payload.data(), block.payload.size());
  for (const SliceSum& slice : info.slices) {
    offered.slices.push_back(used_);
    used_ += slice.bytes;
  }
  batch_.blocks.push_back(std::move(offered));
  sizes_.push_back(block.payload.size());
  return {};
}

Status Importer::flush() {
  if (batch_.blocks.empty()) return {};
  ++batch_.number;
  TRY_STATUS(session_.send(batch_));
  for (;;) {
    TRY(auto message, session_.receive(kStoreTimeout));
    if (!message) return fail(ErrorCode::kDeadlineExceeded, "the KV daemon does not answer");
    const auto* stored = std::get_if<kv::Stored>(&*message);
    if (stored == nullptr || stored->number != batch_.number) continue;
    if (stored->results.size() != sizes_.size())
      return fail(ErrorCode::kDataLoss, "the KV daemon answered what was not offered");
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (stored->results[i] == MissReason::kNone) {
        ++result_.blocks;
        result_.bytes += sizes_[i];
      } else {
        ++result_.skipped[std::string(to_string(stored->results[i]))];
      }
    }
    break;
  }
  batch_.blocks.clear();
  sizes_.clear();
  used_ = 0;
  return {};
}

Result<KvTransferResult> Importer::run() {
  TRY(const InputFile file, open_input(options_.file));
  TRY_STATUS(walk(file.bytes(),
                  [&](const kvcache::ExportItem& item, std::uint64_t) { return look(item); }));
  TRY_STATUS(make_pool());
  TRY_STATUS(register_layouts());
  TRY_STATUS(walk(file.bytes(), [&](const kvcache::ExportItem& item, std::uint64_t at) -> Status {
    if (options_.progress) options_.progress(at, file.bytes().size());
    const auto* block = std::get_if<kvcache::ExportBlock>(&item);
    return block == nullptr ? Status{} : offer(*block);
  }));
  TRY_STATUS(flush());
  result_.roots = roots_.size();
  return std::move(result_);
}

}  // namespace

Result<KvTransferResult> import_kv(kv::KvSession& session, const KvImportOptions& options) {
  return Importer(session, options).run();
}

}  // namespace penstock
