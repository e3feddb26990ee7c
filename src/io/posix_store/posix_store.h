// PosixStore: a BlockStore in a folder that hosts share: NFS, Lustre, 3FS, or local for trying.
//
// A few threads make the blocking calls of StoreFolder. An operation whose deadline comes first is
// answered with kTooSlow; the thread that hangs in it is left alone, with its buffer, until the
// call returns (stats().stranded_bytes, threads_stranded()). When all hang, operations wait in the
// queue and end there at their deadlines. open() touches nothing: a mount that hangs hangs nobody.
//
// Invariants: BlockStore's. The destructor waits a second for calls under way; threads that hang
// longer are left behind with what they need. Limits: `threads`, `queue_max` operations (more:
// kTooSlow). Errors: StoreFolder's reasons. Concurrency: one thread.
// Source: docs/design/0013-cluster-tier.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/posix_store/store_folder.h"

namespace penstock::posix_store {

struct PosixStoreOptions {
  std::string folder;        // absolute; its parent exists
  std::size_t threads = 16;  // calls at a time
  std::size_t queue_max = 65'536;
  std::unique_ptr<FileData> data = nullptr;          // null: PlainFileData
  Duration leftovers_after = std::chrono::hours(1);  // what dead writers left is cleared then
};

class PosixStore final : public BlockStore {
 public:
  // kInvalidArgument: not a folder's absolute path, or no threads.
  static Result<std::unique_ptr<PosixStore>> open(PosixStoreOptions options);
  ~PosixStore() override;
  PosixStore(const PosixStore&) = delete;
  PosixStore& operator=(const PosixStore&) = delete;

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
  int event_fd() const override;
  StoreStats stats() const override;

  std::size_t threads_stranded() const { return stranded_.size(); }

 private:
  struct Shared;  // with the threads
  using Work = std::function<MissReason(StoreFolder&)>;
  struct Pending {
    Instant deadline;
    std::uint64_t bytes = 0;  // of its buffer
    Done done;
  };

  explicit PosixStore(PosixStoreOptions options);
  void submit(Instant deadline, std::uint64_t bytes, Work work, Done done);
  void end(std::uint64_t number, MissReason reason);

  std::shared_ptr<Shared> shared_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Pending> pending_;
  std::set<std::pair<Instant, std::uint64_t>> deadlines_;  // of pending_
  std::map<std::uint64_t, std::uint64_t> stranded_;        // calls given up, bytes of their buffers
  std::vector<std::pair<Done, MissReason>> ended_;         // without a thread, for the next poll()
  StoreStats stats_;
};

}  // namespace penstock::posix_store
