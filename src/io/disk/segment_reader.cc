#include "io/disk/segment_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace penstock::disk {
namespace {

using kvcache::kUnitBytes;

constexpr std::string_view kLockTitle = "penstock kv store 1 ";
constexpr std::uint32_t kGapUnitsMax = 2048;  // 8 MiB without a record end a segment

class File {
 public:
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool is_open() const { return fd_ >= 0; }
  // Bytes read; fewer at the file's end or after an error.
  std::size_t read(std::uint64_t offset, std::span<std::byte> to) const {
    std::size_t done = 0;
    while (done < to.size()) {
      const ssize_t n =
          ::pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }

 private:
  int fd_;
};

std::optional<Hash128> store_of(const std::string& folder) {
  std::array<std::byte, 64> bytes{};
  const File lock(folder + "/LOCK");
  if (!lock.is_open()) return std::nullopt;
  const std::size_t got = lock.read(0, bytes);
  const std::string_view line(reinterpret_cast<const char*>(bytes.data()), got);
  Hash128 store;
  std::size_t length = 0;
  const bool is_ours = line.starts_with(kLockTitle) && got >= kLockTitle.size() + 32 &&
                       sodium_hex2bin(store.bytes.data(), 16, line.data() + kLockTitle.size(), 32,
                                      nullptr, &length, nullptr) == 0;
  return is_ours && length == 16 ? std::optional(store) : std::nullopt;
}

}  // namespace

Result<std::unique_ptr<SegmentReader>> SegmentReader::open(std::string folder,
                                                           const std::string& key_file) {
  TRY_STATUS(RecordCipher::initialise());
  const auto store = store_of(folder);
  if (!store) {
    return fail(
        ErrorCode::kNotFound,
        fmt::format("{} holds no KV segments; is it the --kv-dir of the KV daemon?", folder));
  }
  std::unique_ptr<SegmentReader> reader(new SegmentReader(std::move(folder), *store));
  if (!key_file.empty()) {
    TRY(const RecordCipher::Key key, RecordCipher::read_key_file(key_file));
    reader->cipher_.emplace(key);
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(reader->folder_, error)) {
    const std::string name = entry.path().filename().string();
    std::uint32_t number = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
    if (parsed.ec == std::errc() && name == fmt::format("{:04}.seg", number))
      reader->numbers_.push_back(number);
  }
  if (error) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot read {}: {}", reader->folder_, error.message()));
  }
  std::ranges::sort(reader->numbers_);
  return reader;
}

std::string SegmentReader::path_of(std::uint32_t segment) const {
  return fmt::format("{}/{:04}.seg", folder_, segment);
}

void SegmentReader::for_each(const std::function<void(const StoredRecord&)>& visit) {
  other_key_ = 0;
  for (const std::uint32_t number : numbers_)
    records_of(number, visit);
}

void SegmentReader::records_of(std::uint32_t segment,
                               const std::function<void(const StoredRecord&)>& visit) {
  const File file(path_of(segment));
  std::vector<std::byte> unit(kUnitBytes);
  if (!file.is_open() || file.read(0, unit) < kUnitBytes) return;
  const auto header = kvcache::parse_segment_header(unit);
  if (!header || header->store != store_) return;
  if (header->cipher_id != (cipher_ ? cipher_->id() : 0)) {
    ++other_key_;
    return;
  }
  std::uint32_t gap = 0;
  for (std::uint32_t at = 1; at < header->segment_units && gap < kGapUnitsMax;) {
    if (file.read(std::uint64_t{at} * kUnitBytes, unit) < kUnitBytes) return;
    auto record = kvcache::parse_record_header(unit, header->epoch);
    if (!record || record->record_units() > header->segment_units - at) {
      ++at;
      ++gap;
      continue;
    }
    gap = 0;
    visit({std::move(record->info), header->epoch, segment, at, record->record_units()});
    at += record->record_units();
  }
}

MissReason SegmentReader::read(const StoredRecord& record, BlockInfo& info,
                               std::vector<std::byte>& payload) {
  const File file(path_of(record.segment));
  std::vector<std::byte> bytes(std::size_t{record.units} * kUnitBytes);
  if (!file.is_open() || file.read(std::uint64_t{record.unit} * kUnitBytes, bytes) < bytes.size())
    return MissReason::kIoError;
  auto header = kvcache::parse_record_header(bytes, record.epoch);
  if (!header || header->info.name != record.info.name || header->record_units() != record.units ||
      header->encrypted != cipher_.has_value()) {
    return MissReason::kCorrupt;
  }
  if (cipher_ && !cipher_->open(*header, bytes)) return MissReason::kCorrupt;
  if (!kvcache::parse_slices(bytes, *header)) return MissReason::kCorrupt;
  const auto begin = bytes.begin() + std::ptrdiff_t{header->header_units()} * kUnitBytes;
  payload.assign(begin, begin + header->bytes);
  if (!kvcache::payload_matches(header->info, payload)) return MissReason::kCorrupt;
  info = std::move(header->info);
  return MissReason::kNone;
}

}  // namespace penstock::disk
