// RadosBlockStore: see rados_store.h. Objects in rados_block_store.cc; manifests, leases and the
// use of space in rados_manifests.cc. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/rados/rados_calls.h"
#include "io/rados/rados_link.h"
#include "io/rados/rados_objects.h"
#include "io/rados/rados_store.h"

namespace penstock::rados {

class RadosBlockStore final : public BlockStore {
 public:
  RadosBlockStore(const RadosLibrary& library, const RadosStoreOptions& options);

  void put(StorePut put) override;
  void get(StoreGet get) override;
  void look_up(StoreLookUp look_up) override;
  void touch(StoreName name, TimeSlice slice, Instant deadline, Done done) override;
  void remove(StoreName name, TimeSlice slice_max, Instant deadline,
              std::function<void(MissReason, bool, std::uint64_t)> done) override;
  void add_to_manifest(ManifestId id, std::vector<StoreName> names, Instant deadline,
                       Done done) override;
  void read_manifest(ManifestId id, std::string from, std::size_t names_max, Instant deadline,
                     std::function<void(MissReason, ManifestPage)> done) override;
  void list_manifests(Instant deadline,
                      std::function<void(MissReason, std::vector<ManifestId>)> done) override;
  void drop_manifest(ManifestId id, Instant deadline, Done done) override;
  void take_lease(std::string what, std::string owner, Duration duration, Instant deadline,
                  std::function<void(MissReason, bool)> done) override;
  void give_back_lease(std::string what, std::string owner, Instant deadline, Done done) override;
  void use(Instant deadline, std::function<void(MissReason, StoreUse)> done) override;
  void poll(Instant now) override;
  int event_fd() const override { return calls_.mailbox()->event_fd(); }
  StoreStats stats() const override;

 private:
  using Then = RadosCalls::Then;
  enum class PutStep : std::uint8_t { kCreate, kReplace, kReplaceBytes };

  void put_step(std::shared_ptr<StorePut> put, PutStep step);
  // Starts `op` on an object; the payload it has copied counts as `bytes` until it ends.
  void write(StorePool pool, const std::string& object, const WriteOp& op, std::size_t bytes,
             Instant deadline, Then then);
  void set_keys(const std::string& object, const std::vector<std::string>& keys, Instant deadline,
                Then then);
  void add_names(ManifestId id, const std::vector<StoreName>& names, Instant deadline, Done done);
  void read_keys(const std::string& object, const std::string& after, std::size_t keys_max,
                 Instant deadline, std::function<void(int, std::vector<std::string>, bool)> then);
  void read_shard(ManifestId id, std::size_t shard, const std::string& after, std::size_t names_max,
                  Instant deadline, std::function<void(MissReason, ManifestPage)> done);
  void list_more(std::vector<ManifestId> so_far, const std::string& after, Instant deadline,
                 std::function<void(MissReason, std::vector<ManifestId>)> done);
  // Runs a blocking call on the link's thread; its code comes to `then`.
  void run(Instant deadline, std::shared_ptr<void> held, std::function<int()> job, Then then);
  // Counts the code's trouble, and says what it is to a caller.
  MissReason reason_of(int code);

  const RadosLibrary& library_;
  const RadosStoreOptions options_;
  RadosLink link_;
  RadosCalls calls_;  // after link_: it is destroyed first, and its calls end over the link
  Instant now_{};
  // Manifests known to stand in the list of all, and when that was written: not each time.
  std::map<ManifestId, Instant> listed_;
  std::string full_;  // why writes are refused for space; empty: the last put was not
  std::uint64_t timeouts_in_a_row_ = 0;
  std::string trouble_;  // of the last failed operation that has a remedy; empty: none
  StoreStats stats_;
};

}  // namespace penstock::rados
