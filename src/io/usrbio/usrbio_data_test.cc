// The posix layout over USRBIO rings, with a library of the same ABI over plain files
// (testing/hf3fs_for_tests.cc).
#include "io/usrbio/usrbio_data.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cerrno>
#include <cstdint>

#include "io/files/descriptor.h"
#include "io/files/files.h"
#include "io/posix_store/posix_store.h"
#include "tests/support/block_store_contract.h"

#include <doctest/doctest.h>

namespace penstock::usrbio {
namespace {

using posix_store::FileData;
using testing::random_payload;
using testing::StoreUser;

std::unique_ptr<FileData> open_data(const std::string& folder, std::size_t lane_bytes = 1 << 20,
                                    std::size_t lanes = 2) {
  auto data = open_usrbio({folder, PENSTOCK_HF3FS_FOR_TESTS, lanes, lane_bytes});
  REQUIRE_MESSAGE(data, (data ? "" : data.error().message));
  return std::move(*data);
}

std::unique_ptr<BlockStore> open_store(const std::string& folder) {
  posix_store::PosixStoreOptions options;
  options.folder = folder;
  options.threads = 4;
  options.data = open_data(folder);
  auto store = posix_store::PosixStore::open(std::move(options));
  REQUIRE(store);
  return std::move(*store);
}

// The nth operation of any ring ends with `result`.
void fail_operation(int n, std::int64_t result) {
  void* library = ::dlopen(PENSTOCK_HF3FS_FOR_TESTS, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  auto* fail =
      reinterpret_cast<void (*)(int, std::int64_t)>(::dlsym(library, "hf3fs_for_tests_fail"));
  REQUIRE(static_cast<bool>(fail));
  fail(n, result);
}

}  // namespace

TEST_CASE("a store over USRBIO keeps the contract, and its files are those of the posix store") {
  const TemporaryDirectory parent = TemporaryDirectory::make("usrbio").value();
  const std::string folder = parent.path() + "/store";
  testing::check_block_store([&] { return open_store(folder); });
  StoreUser ours(open_store(folder));
  const StoreBuffer payload = random_payload(1, 3'000'000);
  CHECK(ours.put({StorePool::kExtents, "shared"}, payload) == MissReason::kNone);
  auto plain = posix_store::PosixStore::open({.folder = folder});
  REQUIRE(plain);
  StoreUser theirs(std::move(*plain));
  CHECK(std::ranges::equal(theirs.get({StorePool::kExtents, "shared"}, 3'000'000).second,
                           payload.bytes));
}

TEST_CASE("no library, one without the functions, no folder: refused with what to do") {
  const auto missing = open_usrbio({"/tmp", "libhf3fs-nowhere.so"});
  REQUIRE(!missing);
  CHECK(missing.error().message.find("libhf3fs-nowhere.so") != std::string::npos);
  CHECK(missing.error().message.find("posix") != std::string::npos);
  const auto other = open_usrbio({"/tmp", "libm.so.6"});
  REQUIRE(!other);
  CHECK(other.error().message.find("hf3fs_") != std::string::npos);
  CHECK(!open_usrbio({"", PENSTOCK_HF3FS_FOR_TESTS}));
  CHECK(!open_usrbio({"/tmp", PENSTOCK_HF3FS_FOR_TESTS, 0}));
}

TEST_CASE("errors of operations are errnos, short ones go on, and the lane serves again") {
  const TemporaryDirectory folder = TemporaryDirectory::make("usrbio").value();
  const auto data = open_data(folder.path(), 4096, 1);
  const std::string path = folder.path() + "/file";
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
  const StoreBuffer payload = random_payload(7, 10'000);  // in three parts
  CHECK(data->write(file.get(), payload.bytes) == 0);
  const StoreBuffer to = testing::store_buffer(20'000);
  CHECK(data->read(file.get(), to.bytes, 0) == 10'000);
  CHECK(std::ranges::equal(to.bytes.first(10'000), payload.bytes));
  CHECK(data->read(file.get(), to.bytes, 10'000) == 0);
  for (const int at : {1, 2, 3}) {
    fail_operation(at, -ENOSPC);
    CHECK(data->write(file.get(), payload.bytes) == ENOSPC);
    fail_operation(at, -EIO);
    CHECK(data->read(file.get(), to.bytes, 0) == -EIO);
  }
  fail_operation(1, -7'000'000);  // a code of 3FS's own
  CHECK(data->read(file.get(), to.bytes, 0) == -EIO);
  fail_operation(1, 0);  // nothing written: never an endless loop
  CHECK(data->write(file.get(), payload.bytes) == EIO);
  CHECK(data->write(file.get(), payload.bytes) == 0);
  CHECK(data->read(-1, to.bytes, 0) == -EBADF);
  CHECK(data->read(file.get(), to.bytes, 0) == 10'000);
}

TEST_CASE("a folder that is not on 3FS is an error when it is used") {
  const auto data = open_data("/not-3fs/store");
  const TemporaryDirectory folder = TemporaryDirectory::make("usrbio").value();
  const Descriptor file(::open((folder.path() + "/file").c_str(), O_RDWR | O_CREAT, 0600));
  CHECK(data->write(file.get(), random_payload(1, 10).bytes) == ENOTSUP);
}

}  // namespace penstock::usrbio
