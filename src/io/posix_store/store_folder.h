// StoreFolder: a block store's objects, manifests and leases as files of one folder, by blocking
// calls.
//
//   extents/HHH/NAME small/HHH/NAME  objects; HHH: three digits of the name's hash
//   manifests/CLASS/SLICE/WRITER     names, one a line: "e NAME" or "s NAME"; each writer appends
//                                    to a file of its own
//   leases/WHAT                      "OWNER MILLISECONDS": until then, wall time
//   tmp/, trash/                     what is being written or removed, WRITER-NUMBER
//
// An object is written in tmp/ and renamed, so it is visible whole or not at all. Its noted slice
// is its modification time (seconds). It is removed by renaming it away, looking at the slice, and
// linking it back when it was used meanwhile: a touch happens before the rename and is seen, or
// after it and finds nothing. Two hosts that touch an object at once with different slices may note
// the earlier one. A lease that ran out is taken over by renaming it away; hosts' clocks may differ
// by less than a lease's duration. An append begins a new line, so a line torn by a crash or a full
// disk spoils no other.
//
// The folder is held open: a mount that goes away is an error, not an empty store. After ESTALE or
// ENOTCONN it is opened anew, once an operation.
// Errors: reasons: kNeverStored (ENOENT), kEvictedShare (ENOSPC, EDQUOT), kIoError (all else); the
// text of the last one in trouble(). Concurrency: any number of threads. Source:
// docs/design/0013-cluster-tier.md; docs/cluster-store.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/descriptor.h"
#include "io/posix_store/file_data.h"
#include "port/block_store.h"

namespace penstock::posix_store {

// Objects, manifests and leases may have such names.
bool is_sound_name(std::string_view name);

class StoreFolder {
 public:
  // `writer`: a sound name that nobody else uses. Looks at nothing yet.
  StoreFolder(std::string path, std::string writer, std::unique_ptr<FileData> data,
              Duration leftovers_after);

  MissReason put(const StoreName& name, std::span<const std::byte> bytes, TimeSlice slice);
  MissReason get(const StoreName& name, std::uint64_t offset, std::span<std::byte> to,
                 std::size_t& read);
  MissReason look_up(std::span<const StoreName> names, std::span<StoreFound> found);
  MissReason touch(const StoreName& name, TimeSlice slice);
  MissReason remove(const StoreName& name, TimeSlice slice_max, bool& removed,
                    std::uint64_t& bytes);

  MissReason add_to_manifest(ManifestId id, std::span<const StoreName> names);
  MissReason read_manifest(ManifestId id, const std::string& from, std::size_t names_max,
                           ManifestPage& page);
  // Also clears what has been in tmp/ and trash/ for `leftovers_after`: its writer has died.
  MissReason list_manifests(std::vector<ManifestId>& ids);
  MissReason drop_manifest(ManifestId id);

  MissReason take_lease(const std::string& what, const std::string& owner, Duration duration,
                        bool& taken);
  MissReason give_back_lease(const std::string& what, const std::string& owner);

  MissReason use(StoreUse& use);
  std::string trouble() const;  // the last error; empty: there was none since the last success

 private:
  using Root = std::shared_ptr<const Descriptor>;
  // Runs `operation` (the open folder -> 0 or errno), again when the mount has changed.
  MissReason attempt(std::string_view what, const std::function<int(int root)>& operation);
  int open_root(Root& root);
  std::string unique(std::string_view folder);  // a path in tmp/ or trash/
  int write_new(int root, const std::string& path, std::string_view text);
  int claim_expired(int root, const std::string& lease, const std::string& content);

  const std::string path_;
  const std::string writer_;
  const std::unique_ptr<FileData> data_;
  const Duration leftovers_after_;
  std::atomic<std::uint64_t> last_number_ = 0;
  mutable std::mutex mutex_;
  Root root_;  // null: to be opened
  std::string trouble_;
};

}  // namespace penstock::posix_store
