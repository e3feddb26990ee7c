// RADOS write and read operations as values that release themselves, and what reads of names and
// attributes fill in. Concurrency: as the values they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "io/rados/rados_library.h"
#include "port/block_store.h"

namespace penstock::rados {

inline constexpr const char* kSliceAttribute = "slice";

// Twenty digits, so that RADOS's comparison of strings is one of numbers.
inline std::string slice_text(TimeSlice slice) {
  return fmt::format("{:020}", slice);
}

class WriteOp {
 public:
  explicit WriteOp(const RadosLibrary& library)
      : library_(library), op_(library.create_write_op()) {}
  ~WriteOp() { library_.release_write_op(op_); }
  WriteOp(const WriteOp&) = delete;
  WriteOp& operator=(const WriteOp&) = delete;

  void create() { library_.write_op_create(op_, LIBRADOS_CREATE_EXCLUSIVE, nullptr); }
  void require_exists() { library_.write_op_assert_exists(op_); }
  // Goes on only when `slice` compares to the noted one as `comparison` says; else -ECANCELED.
  void require_slice(std::uint8_t comparison, TimeSlice slice) {
    const std::string text = slice_text(slice);
    library_.write_op_cmpxattr(op_, kSliceAttribute, comparison, text.data(), text.size());
  }
  void note_slice(TimeSlice slice) {
    const std::string text = slice_text(slice);
    library_.write_op_setxattr(op_, kSliceAttribute, text.data(), text.size());
  }
  // Copies the bytes.
  void write(std::span<const std::byte> bytes) {
    library_.write_op_write_full(op_, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void remove() { library_.write_op_remove(op_); }
  rados_write_op_t get() const { return op_; }

 private:
  const RadosLibrary& library_;
  rados_write_op_t op_;
};

// Of one look-up; filled in when it has come back with 0.
struct ObjectFacts {
  explicit ObjectFacts(const RadosLibrary& of) : library(of) {}
  ~ObjectFacts() {
    if (attributes != nullptr) library.getxattrs_end(attributes);
  }
  ObjectFacts(const ObjectFacts&) = delete;
  ObjectFacts& operator=(const ObjectFacts&) = delete;

  TimeSlice slice() {
    const char *name = nullptr, *value = nullptr;
    std::size_t length = 0;
    while (attributes != nullptr &&
           library.getxattrs_next(attributes, &name, &value, &length) == 0 && name != nullptr) {
      if (std::string_view(name) == kSliceAttribute)
        return std::strtoull(std::string(value, length).c_str(), nullptr, 10);
    }
    return 0;
  }

  const RadosLibrary& library;
  std::uint64_t bytes = 0;
  std::time_t time = 0;
  rados_xattrs_iter_t attributes = nullptr;
  int stat_code = 0, attributes_code = 0;
};

// A page of the keys of an object's omap.
struct OmapKeys {
  explicit OmapKeys(const RadosLibrary& of) : library(of) {}
  ~OmapKeys() {
    if (keys != nullptr) library.omap_get_end(keys);
  }
  OmapKeys(const OmapKeys&) = delete;
  OmapKeys& operator=(const OmapKeys&) = delete;

  bool next(std::string& key) {
    char *name = nullptr, *value = nullptr;
    std::size_t bytes = 0, value_bytes = 0;
    if (keys == nullptr || library.omap_get_next2(keys, &name, &value, &bytes, &value_bytes) != 0 ||
        name == nullptr)
      return false;
    key.assign(name, bytes);
    return true;
  }

  const RadosLibrary& library;
  rados_omap_iter_t keys = nullptr;
  unsigned char more = 0;
  int code = 0;
};

}  // namespace penstock::rados
