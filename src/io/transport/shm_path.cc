#include "io/transport/shm_path.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/transport/hub.h"

namespace penstock::transport {
namespace {

constexpr std::size_t kPoolsMax = 256;

std::unexpected<Error> out_of_place() {
  return fail(ErrorCode::kInvalidArgument, "it sent a frame out of place");
}

class Owner final : public DataPath {
 public:
  explicit Owner(Connection& connection) : connection_(connection) {}

  Result<Welcome> greeted(const Hello&) override {
    // Before the welcome, so that the pools are there when reads can start.
    for (std::uint32_t i = 0; i < connection_.hub().pools().size(); ++i)
      TRY_STATUS(send(i));
    return Welcome{};
  }
  void published(std::uint32_t pool) override {
    if (const Status sent = send(pool); !sent) connection_.fail_with(sent.error().message);
  }
  Status frame(Kind, std::string_view) override { return out_of_place(); }
  void shut() override {}

  Hello hello() override { return {}; }
  Status welcomed(const Welcome&) override { return out_of_place(); }
  void start_read(std::uint64_t, const RemoteSlice&, std::byte*) override { ENSURE(false); }
  void abandon(std::uint64_t) override {}

 private:
  Status send(std::uint32_t number) {
    const PublishedPool& pool = connection_.hub().pools().pool(number);
    if (read_only_.size() <= number) read_only_.resize(number + 1);
    // A new description of the file, without the right to write.
    read_only_[number] =
        Descriptor(::open(fmt::format("/proc/self/fd/{}", pool.fd).c_str(), O_RDONLY | O_CLOEXEC));
    if (read_only_[number].get() < 0) {
      return fail(ErrorCode::kIo, fmt::format("cannot open the KV pool {} again to read: {}",
                                              number, std::strerror(errno)));
    }
    connection_.control().push(
        encode(PoolNotice{number, pool.blocks, pool.bytes, pool.payload_offset, pool.block_bytes}),
        read_only_[number].get());
    return {};
  }

  Connection& connection_;
  std::vector<Descriptor> read_only_;  // open until they are sent at least
};

class Reader final : public DataPath {
 public:
  explicit Reader(Connection& connection) : connection_(connection) {}

  Hello hello() override { return {Driver::kShm, 0, {}}; }
  Status welcomed(const Welcome&) override {
    connection_.ready();
    return {};
  }
  Status frame(Kind kind, std::string_view body) override {
    if (kind != Kind::kPool) return out_of_place();
    TRY(const PoolNotice notice, decode_pool(body));
    auto& descriptors = connection_.control().descriptors();
    if (descriptors.empty() || notice.number != pools_.size() || pools_.size() >= kPoolsMax)
      return out_of_place();
    const Descriptor fd = std::move(descriptors.front());
    descriptors.erase(descriptors.begin());
    auto mapping = map_to_read(fd.get(), notice.bytes);
    if (!mapping) return std::unexpected(std::move(mapping).error());
    const PoolView view{mapping->memory(), notice.payload_offset, notice.block_bytes,
                        notice.blocks};
    if (!view.valid())
      return fail(ErrorCode::kInvalidArgument, "it sent a pool whose parts don't fit into it");
    pools_.push_back(std::make_shared<PoolImage>(std::move(*mapping), view));
    return {};
  }
  void start_read(std::uint64_t read, const RemoteSlice& slice, std::byte* into) override {
    Hub& hub = connection_.hub();
    if (slice.pool >= pools_.size()) {
      hub.loop().call_at(Instant{}, [&hub, read] { hub.read_ended(read, ReadEnd::kRefused); });
      return;
    }
    hub.copier().add({read, this, pools_[slice.pool], slice, into});
  }
  void abandon(std::uint64_t read) override { connection_.hub().copier().remove(read); }
  void shut() override { connection_.hub().copier().remove_all(this); }

  Result<Welcome> greeted(const Hello&) override { return out_of_place(); }
  void published(std::uint32_t) override {}

 private:
  Connection& connection_;
  std::vector<std::shared_ptr<PoolImage>> pools_;
};

}  // namespace

std::unique_ptr<DataPath> shm_owner(Connection& connection) {
  return std::make_unique<Owner>(connection);
}

std::unique_ptr<DataPath> shm_reader(Connection& connection) {
  return std::make_unique<Reader>(connection);
}

}  // namespace penstock::transport
