// MemoryStore: a BlockStore in memory that can hang, fail and be damaged, as the test wants.
//
// Operations are done when they are asked for and answered by the next poll(); while it hangs,
// nothing is done, and poll() answers at the deadlines.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "port/block_store.h"

namespace penstock::testing {

class MemoryStore final : public BlockStore {
 public:
  struct Object {
    std::vector<std::byte> bytes;
    TimeSlice slice = 0;
  };
  bool hangs = false;
  MissReason verdict = MissReason::kNone;  // of every operation
  std::map<StoreName, Object> objects;
  std::map<ManifestId, std::vector<StoreName>> manifests;
  std::map<std::string, std::string> leases;
  std::vector<std::vector<StoreName>> look_ups;
  std::vector<StoreName> gets;
  std::uint64_t removes = 0;
  std::vector<std::size_t> notings;  // names of each write of a manifest
  std::size_t puts_under_way = 0, puts_under_way_max = 0;
  StoreUse used{.bytes_used = 0, .bytes_total = std::uint64_t{1} << 40};

  void put(StorePut put) override {
    puts_under_way_max = std::max(puts_under_way_max, ++puts_under_way);
    later(put.deadline, [this, put](MissReason reason) {
      --puts_under_way;
      if (reason == MissReason::kNone) {
        Object& object = objects[put.name];
        object.bytes.assign(put.payload.bytes.begin(), put.payload.bytes.end());
        object.slice = std::max(object.slice, put.slice);
      }
      put.done(reason);
    });
  }
  void get(StoreGet get) override {
    gets.push_back(get.name);
    later(get.deadline, [this, get](MissReason reason) {
      const auto found = objects.find(get.name);
      if (reason == MissReason::kNone && found == objects.end()) reason = MissReason::kNeverStored;
      if (reason != MissReason::kNone) return get.done(reason, 0);
      const std::vector<std::byte>& bytes = found->second.bytes;
      const std::size_t begin = std::min<std::size_t>(get.offset, bytes.size());
      const std::size_t count = std::min(get.destination.bytes.size(), bytes.size() - begin);
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), count,
                  get.destination.bytes.begin());
      get.done(MissReason::kNone, count);
    });
  }
  void look_up(StoreLookUp look_up) override {
    look_ups.push_back(look_up.names);
    later(look_up.deadline, [this, look_up](MissReason reason) {
      std::vector<StoreFound> found;
      for (const StoreName& name : look_up.names) {
        const auto object = objects.find(name);
        found.push_back(object == objects.end()
                            ? StoreFound{}
                            : StoreFound{object->second.bytes.size(), object->second.slice});
      }
      if (reason != MissReason::kNone) found.clear();
      look_up.done(reason, std::move(found));
    });
  }
  void touch(StoreName name, TimeSlice slice, Instant deadline, Done done) override {
    later(deadline, [this, name, slice, done](MissReason reason) {
      const auto found = objects.find(name);
      if (reason == MissReason::kNone && found == objects.end()) reason = MissReason::kNeverStored;
      if (reason == MissReason::kNone) found->second.slice = std::max(found->second.slice, slice);
      done(reason);
    });
  }
  void remove(StoreName name, TimeSlice slice_max, Instant deadline,
              std::function<void(MissReason, bool, std::uint64_t)> done) override {
    ++removes;
    later(deadline, [this, name, slice_max, done](MissReason reason) {
      const auto found = objects.find(name);
      if (reason == MissReason::kNone && found == objects.end()) reason = MissReason::kNeverStored;
      if (reason != MissReason::kNone) return done(reason, false, 0);
      const std::uint64_t bytes = found->second.bytes.size();
      const bool goes = found->second.slice <= slice_max;
      if (goes) objects.erase(found);
      done(reason, goes, bytes);
    });
  }
  void add_to_manifest(ManifestId id, std::vector<StoreName> names, Instant deadline,
                       Done done) override {
    notings.push_back(names.size());
    later(deadline, [this, id, names, done](MissReason reason) {
      if (reason == MissReason::kNone)
        manifests[id].insert(manifests[id].end(), names.begin(), names.end());
      done(reason);
    });
  }
  void read_manifest(ManifestId id, std::string from, std::size_t names_max, Instant deadline,
                     std::function<void(MissReason, ManifestPage)> done) override {
    later(deadline, [this, id, from, names_max, done](MissReason reason) {
      ManifestPage page;
      const auto& names = manifests[id];
      std::size_t at = from.empty() ? 0 : std::stoul(from);
      for (; at < names.size() && page.names.size() < names_max; ++at)
        page.names.push_back(names[at]);
      if (at < names.size()) page.next = std::to_string(at);
      done(reason, std::move(page));
    });
  }
  void list_manifests(Instant deadline,
                      std::function<void(MissReason, std::vector<ManifestId>)> done) override {
    later(deadline, [this, done](MissReason reason) {
      std::vector<ManifestId> ids;
      for (const auto& [id, names] : manifests)
        ids.push_back(id);
      done(reason, std::move(ids));
    });
  }
  void drop_manifest(ManifestId id, Instant deadline, Done done) override {
    later(deadline, [this, id, done](MissReason reason) {
      if (reason == MissReason::kNone) manifests.erase(id);
      done(reason);
    });
  }
  void take_lease(std::string what, std::string owner, Duration, Instant deadline,
                  std::function<void(MissReason, bool)> done) override {
    later(deadline, [this, what, owner, done](MissReason reason) {
      const bool taken =
          reason == MissReason::kNone && leases.try_emplace(what, owner).first->second == owner;
      done(reason, taken);
    });
  }
  void give_back_lease(std::string what, std::string owner, Instant deadline, Done done) override {
    later(deadline, [this, what, owner, done](MissReason reason) {
      const auto found = leases.find(what);
      if (reason == MissReason::kNone && found != leases.end() && found->second == owner)
        leases.erase(found);
      done(reason);
    });
  }
  void use(Instant deadline, std::function<void(MissReason, StoreUse)> done) override {
    later(deadline, [this, done](MissReason reason) { done(reason, used); });
  }
  void poll(Instant now) override {
    for (Pending& operation : std::exchange(pending_, {})) {
      if (!hangs) {
        operation.done(verdict);
      } else if (operation.deadline <= now) {
        operation.done(MissReason::kTooSlow);
      } else {
        pending_.push_back(std::move(operation));
      }
    }
  }
  int event_fd() const override { return -1; }
  StoreStats stats() const override {
    StoreStats stats;
    stats.state = hangs ? "hangs" : "ok";
    return stats;
  }
  std::size_t pending() const { return pending_.size(); }

 private:
  struct Pending {
    Instant deadline;
    std::function<void(MissReason)> done;
  };
  void later(Instant deadline, std::function<void(MissReason)> done) {
    pending_.push_back({deadline, std::move(done)});
  }
  std::vector<Pending> pending_;
};

}  // namespace penstock::testing
