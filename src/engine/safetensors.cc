#include "engine/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>

namespace penstock::engine {
namespace {

namespace json = boost::json;

// The format's own limit.
constexpr std::uint64_t kHeaderBytesMax = 100'000'000;
constexpr std::size_t kDimensionsMax = 8;

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr Dtype kDtypes[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4},  {"F64", 8},     {"I8", 1},
                             {"U8", 1},   {"I16", 2}, {"U16", 2},  {"I32", 4},     {"U32", 4},
                             {"I64", 8},  {"U64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

std::unexpected<Error> lies(std::string message) {
  return fail(ErrorCode::kDataLoss, std::move(message));
}

// Tensor names come from the file: cut them before they go into a message.
std::string_view cut(std::string_view name) {
  return name.substr(0, 120);
}

std::optional<std::uint64_t> natural(const json::value& v) {
  if (v.is_int64() && v.get_int64() >= 0) return static_cast<std::uint64_t>(v.get_int64());
  if (v.is_uint64()) return v.get_uint64();
  return std::nullopt;
}

Result<std::vector<std::uint64_t>> naturals(const json::object& entry, std::string_view key,
                                            std::string_view name) {
  const json::value* list = entry.if_contains(key);
  if (list == nullptr || !list->is_array() || list->get_array().size() > kDimensionsMax) {
    return lies(fmt::format("tensor \"{}\": \"{}\" must be a list of at most {} integers",
                            cut(name), key, kDimensionsMax));
  }
  std::vector<std::uint64_t> out;
  for (const json::value& v : list->get_array()) {
    const std::optional<std::uint64_t> n = natural(v);
    if (!n) {
      return lies(fmt::format("tensor \"{}\": \"{}\" holds something that is not a natural number",
                              cut(name), key));
    }
    out.push_back(*n);
  }
  return out;
}

Result<std::uint64_t> byte_size(const TensorInfo& tensor, std::string_view name) {
  const auto* dtype = std::ranges::find(kDtypes, tensor.dtype, &Dtype::name);
  if (dtype == std::end(kDtypes)) {
    return lies(fmt::format("tensor \"{}\": unknown dtype \"{}\"", cut(name),
                            std::string_view(tensor.dtype).substr(0, 20)));
  }
  std::uint64_t bytes = dtype->bytes;
  for (const std::uint64_t n : tensor.shape) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) {
      return lies(
          fmt::format("tensor \"{}\": shape {} overflows", cut(name), shape_text(tensor.shape)));
    }
  }
  return bytes;
}

Result<TensorInfo> parse_entry(std::string_view name, const json::value& value,
                               std::uint64_t data_bytes) {
  const json::object* entry = value.if_object();
  if (entry == nullptr) return lies(fmt::format("tensor \"{}\" is not an object", cut(name)));
  TensorInfo tensor;
  const json::value* dtype = entry->if_contains("dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    return lies(fmt::format("tensor \"{}\": \"dtype\" must be a string", cut(name)));
  }
  tensor.dtype = std::string(dtype->get_string());
  TRY(tensor.shape, naturals(*entry, "shape", name));
  TRY(const std::vector<std::uint64_t> offsets, naturals(*entry, "data_offsets", name));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    return lies(fmt::format("tensor \"{}\": data_offsets do not lie within the {} bytes of data",
                            cut(name), data_bytes));
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  TRY(const std::uint64_t bytes, byte_size(tensor, name));
  if (bytes != tensor.end - tensor.begin) {
    return lies(fmt::format("tensor \"{}\": {} of shape {} needs {} bytes, data_offsets give {}",
                            cut(name), tensor.dtype, shape_text(tensor.shape), bytes,
                            tensor.end - tensor.begin));
  }
  return tensor;
}

// The data region must be covered exactly once.
Status check_cover(const TensorIndex& index, std::uint64_t data_bytes) {
  struct Range {
    std::uint64_t begin, end;
    std::string_view name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, t] : index)
    ranges.push_back({t.begin, t.end, name});
  std::ranges::sort(ranges, [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t position = 0;
  for (const Range& r : ranges) {
    if (r.begin != position) {
      return lies(fmt::format("tensor \"{}\" {} the tensor before it (at byte {} of the data)",
                              cut(r.name), r.begin < position ? "overlaps" : "leaves a hole after",
                              r.begin));
    }
    position = r.end;
  }
  if (position != data_bytes) {
    return lies(fmt::format("{} bytes follow the last tensor", data_bytes - position));
  }
  return {};
}

// Finds a name that occurs twice among the members of the outermost object: the DOM would keep the
// last one silently.
struct DuplicateFinder {
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);
  std::map<std::string, int, std::less<>> seen;
  std::string key;
  std::string duplicate;
  int depth = 0;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return ++depth, true; }
  bool on_object_end(std::size_t, json::error_code&) { return --depth, true; }
  bool on_array_begin(json::error_code&) { return ++depth, true; }
  bool on_array_end(std::size_t, json::error_code&) { return --depth, true; }
  bool on_key_part(json::string_view s, std::size_t, json::error_code&) {
    key.append(s.data(), s.size());
    return true;
  }
  bool on_key(json::string_view s, std::size_t, json::error_code&) {
    key.append(s.data(), s.size());
    if (depth == 1 && ++seen[key] > 1) duplicate = key;
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(std::int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(std::uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

Status check_duplicates(std::string_view header) {
  json::basic_parser<DuplicateFinder> parser{json::parse_options{}};
  json::error_code error;
  parser.write_some(false, header.data(), header.size(), error);
  if (!parser.handler().duplicate.empty()) {
    return lies(fmt::format("tensor \"{}\" is listed twice", cut(parser.handler().duplicate)));
  }
  return {};
}

Status read_exactly(int fd, std::byte* out, std::uint64_t bytes, std::uint64_t offset,
                    const std::string& path) {
  while (bytes > 0) {
    const ssize_t n = pread(fd, out, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return fail(ErrorCode::kIo, fmt::format("reading {}: {}", path, std::strerror(errno)));
    }
    if (n == 0) return lies(fmt::format("{} ends at byte {}, too early", path, offset));
    out += n;
    bytes -= static_cast<std::uint64_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

std::string shape_text(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<TensorIndex> parse_tensor_index(std::string_view header, std::uint64_t data_bytes) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = 8;
  const json::value root = json::parse(header, error, {}, options);
  if (error) return lies(fmt::format("the header is not valid JSON: {}", error.message()));
  if (!root.is_object()) return lies("the header must be one JSON object");
  TRY_STATUS(check_duplicates(header));
  TensorIndex index;
  for (const auto& [key, value] : root.get_object()) {
    if (key == "__metadata__") continue;
    TRY(TensorInfo tensor, parse_entry(key, value, data_bytes));
    index.emplace(std::string(key), std::move(tensor));
  }
  TRY_STATUS(check_cover(index, data_bytes));
  return index;
}

TensorFile::TensorFile(TensorFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      data_offset_(other.data_offset_),
      index_(std::move(other.index_)) {}

TensorFile::~TensorFile() {
  if (fd_ >= 0) close(fd_);
}

Result<TensorFile> TensorFile::open(const std::string& path) {
  TensorFile file;
  file.path_ = path;
  // Not blocking: a named pipe in place of the file must be an error, not a hang.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status{};
  if (file.fd_ < 0 || fstat(file.fd_, &status) != 0) {
    return fail(ErrorCode::kIo, fmt::format("opening {}: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kIo, fmt::format("{} is not a regular file", path));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::uint8_t prefix[8];
  if (size < sizeof(prefix)) return lies(fmt::format("{} is shorter than 8 bytes", path));
  TRY_STATUS(read_exactly(file.fd_, reinterpret_cast<std::byte*>(prefix), 8, 0, path));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | prefix[i];
  if (length > size - 8 || length > kHeaderBytesMax) {
    return lies(
        fmt::format("{}: a header of {} bytes does not fit a file of {}", path, length, size));
  }
  std::string header(length, '\0');
  TRY_STATUS(read_exactly(file.fd_, reinterpret_cast<std::byte*>(header.data()), length, 8, path));
  file.data_offset_ = 8 + length;
  auto index = parse_tensor_index(header, size - file.data_offset_);
  if (!index) return std::unexpected(std::move(index).error().within(path));
  file.index_ = std::move(*index);
  return file;
}

Result<std::vector<std::byte>> TensorFile::read(const TensorInfo& tensor) const {
  std::vector<std::byte> bytes(tensor.end - tensor.begin);
  TRY_STATUS(read_exactly(fd_, bytes.data(), bytes.size(), data_offset_ + tensor.begin, path_));
  return bytes;
}

}  // namespace penstock::engine
