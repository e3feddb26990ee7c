// Reads a safetensors file: the index first, checked against the file's size, then tensors on
// demand.
//
// Format: 8 bytes little-endian header length, that many bytes of JSON {name: {dtype, shape,
// data_offsets: [begin, end]}}, then the data. Every rule of the format is checked: no duplicate
// names, byte size = shape x dtype, offsets in range, no overlap, no hole, nothing after the last
// tensor. Tensors are read with pread, not mapped: a file that shrinks under us is an error, not a
// SIGBUS.
//
// Invariants: an opened index describes bytes that lie within the file as it was; memory is bounded
// by a small multiple of the header's length, and for a tensor by its size, which the file really
// has. Errors: kIo when the file cannot be read, kDataLoss when it lies or is cut; messages name
// the file and the tensor. Concurrency: const functions from any thread. Source: the published
// description of the safetensors format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::engine {

struct TensorInfo {
  std::string dtype;  // as written: "BF16", "F32", "F16", ...
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // within the data region
  std::uint64_t end = 0;
};

using TensorIndex = std::map<std::string, TensorInfo, std::less<>>;

// Parses and checks the JSON header of a file whose data region has `data_bytes` bytes.
Result<TensorIndex> parse_tensor_index(std::string_view header, std::uint64_t data_bytes);

class TensorFile {
 public:
  static Result<TensorFile> open(const std::string& path);
  TensorFile(TensorFile&& other) noexcept;
  TensorFile& operator=(TensorFile&&) = delete;
  ~TensorFile();

  const TensorIndex& index() const { return index_; }
  const std::string& path() const { return path_; }
  // Reads the bytes of one tensor of the index.
  Result<std::vector<std::byte>> read(const TensorInfo& tensor) const;

 private:
  TensorFile() = default;

  std::string path_;
  int fd_ = -1;
  std::uint64_t data_offset_ = 0;
  TensorIndex index_;
};

// "[4, 192]"
std::string shape_text(std::span<const std::uint64_t> shape);

}  // namespace penstock::engine
