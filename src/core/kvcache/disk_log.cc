#include "core/kvcache/disk_log.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace penstock::kvcache {
namespace {

constexpr std::int64_t kSlicesPerLifetime = 8;
constexpr std::int64_t kSliceSecondsMin = 60;
constexpr std::int64_t kFooterSeconds = 60;  // several hits are one writing
static_assert(kDirectoryMarksMax == DiskSlot::kMarksMax);
static_assert(kDirectoryHeatMax == DiskSlot::kHeatMax);
// Likelihood of another use in eighths, by heat: a quarter of blocks is used again at all.
constexpr std::array<std::uint64_t, DiskSlot::kHeatMax + 1> kLikelihood = {2, 4, 5, 6, 7, 7, 7, 7};
// Depth (in blocks) at which attention over the context costs as much again as the block itself.
constexpr std::uint64_t kCostDepth = 128;
constexpr std::size_t kShardsEmptiedPerCall = 8;

std::uint64_t worth_of(const DiskSlot& slot) {
  return (kCostDepth + slot.depth()) * kLikelihood[slot.heat()];
}

}  // namespace

DiskLog::DiskLog(DiskLogOptions options)
    : options_(std::move(options)),
      seen_(options_.seen_names),
      segments_(options_.segments),
      open_(options_.classes.size()),
      tenants_(1),
      clean_(options_.segments) {
  ENSURE(!options_.classes.empty() && options_.classes.size() <= DiskSlot::kMarksMax);
  ENSURE(options_.segments >= segments_min(options_));
  ENSURE(options_.segments <= DiskSlot::kSegmentsMax);
  ENSURE(options_.segment_units >= 4 && options_.segment_units <= kSegmentUnitsMax);
}

std::uint32_t DiskLog::segments_min(const DiskLogOptions& options) {
  return static_cast<std::uint32_t>(options.classes.size()) + options.clean_min + 1;
}

std::int64_t DiskLog::slice(TtlClass ttl_class) const {
  return std::max(ttl(ttl_class) / kSlicesPerLifetime, kSliceSecondsMin);
}

bool DiskLog::has_room(const Segment& segment, std::uint32_t record_units) const {
  return std::uint64_t{segment.used_units} + record_units +
             directory_units_of(segment.records + 1) + 1 <=
         options_.segment_units;
}

// --- admission and placing

MissReason DiskLog::admit(const BlockInfo& info) {
  const auto tenant = tenant_slots_.find(info.tenant);
  if (space_short() && evicting_others_ && tenant != tenant_slots_.end() &&
      over_share(tenant->second)) {
    return MissReason::kEvictedShare;
  }
  const bool seen = seen_.see(info.name);
  if (seen || options_.classes[known(info.ttl_class)].admit_always) return MissReason::kNone;
  // A window's state goes where its history went; a history block follows a parent that was hit.
  if (info.name.group == KvGroup::kWindow) {
    return find({info.name.key, KvGroup::kHistory}) != nullptr ? MissReason::kNone
                                                               : MissReason::kNotAdmitted;
  }
  const DiskSlot* parent = find({info.parent, KvGroup::kHistory});
  return parent != nullptr && parent->heat() > 0 ? MissReason::kNone : MissReason::kNotAdmitted;
}

bool DiskLog::over_share(std::uint32_t tenant) const {
  const double capacity =
      static_cast<double>(options_.segments) * options_.segment_units * kUnitBytes;
  return static_cast<double>(tenants_[tenant].bytes) > options_.tenant_share_max * capacity;
}

std::optional<DiskLog::Placed> DiskLog::place(TtlClass ttl_class, std::uint32_t record_units,
                                              UnixSeconds now, Purpose purpose) {
  ENSURE(fits(record_units));
  ttl_class = known(ttl_class);
  if (const auto open = open_[ttl_class]; open && (now.value >= segments_[*open].slice_end ||
                                                   !has_room(segments_[*open], record_units))) {
    close(*open);
  }
  bool opened = false;
  if (!open_[ttl_class]) {
    // The last clean segment is for re-insertion, so that taking segments apart always goes on.
    if (clean_ <= (purpose == Purpose::kWrite ? 1U : 0U)) return std::nullopt;
    const auto clean = std::ranges::find(segments_, SegmentState::kClean, &Segment::state);
    ENSURE(clean != segments_.end());
    *clean = Segment();
    clean->state = SegmentState::kOpen;
    clean->ttl_class = ttl_class;
    clean->used_units = 1;
    clean->sequence = ++sequence_;
    const std::array<std::uint64_t, 2> epoch = {options_.epoch_seed, clean->sequence};
    clean->epoch = checksum64(std::as_bytes(std::span(epoch)));
    clean->slice_end = (now.value / slice(ttl_class) + 1) * slice(ttl_class);
    clean->last_use = now.value;
    open_[ttl_class] = static_cast<std::uint32_t>(clean - segments_.begin());
    --clean_;
    opened = true;
  }
  Segment& segment = segments_[*open_[ttl_class]];
  const DiskPlace at{*open_[ttl_class], segment.used_units};
  segment.used_units += record_units;
  ++segment.records;
  return Placed{at, opened};
}

void DiskLog::attach(const DiskSlot& slot) {
  segments_[slot.place().segment].hashes.push_back(DiskIndex::hash_of(slot.name()));
  count(slot, 1);
}

void DiskLog::publish(const BlockInfo& info, std::uint32_t header_units, DiskPlace place) {
  DiskSlot slot(info.name, place, static_cast<std::uint32_t>(info.bytes()), header_units);
  slot.set_depth(info.depth);
  slot.set_tenant(tenant_slot(info.tenant));
  attach(index_.insert(slot));
}

bool DiskLog::move(const BlockName& name, DiskPlace from, DiskPlace to) {
  DiskSlot* slot = index_.find(name);
  if (slot == nullptr || slot->place() != from) return false;
  count(*slot, -1);
  slot->set_place(to);
  slot->set_heat(slot->heat() / 2);
  slot->set_mark(0);
  attach(*slot);
  return true;
}

// --- sealing

void DiskLog::close(std::uint32_t number) {
  Segment& segment = segments_[number];
  if (segment.state != SegmentState::kOpen) return;
  segment.state = SegmentState::kSealing;
  if (open_[segment.ttl_class] == number) open_[segment.ttl_class].reset();
  seals_.push_back(number);
}

std::vector<std::uint32_t> DiskLog::take_seals(UnixSeconds now) {
  for (const auto& open : open_) {
    if (open && now.value >= segments_[*open].slice_end) close(*open);
  }
  return std::exchange(seals_, {});
}

void DiskLog::sealed(std::uint32_t number) {
  Segment& segment = segments_[number];
  if (segment.state != SegmentState::kSealing) return;
  segment.state = SegmentState::kSealed;
  segment.hashes.shrink_to_fit();
}

std::vector<DirectoryEntry> DiskLog::directory_of(std::uint32_t number) {
  std::vector<DirectoryEntry> directory;
  for (const DiskSlot& slot : blocks_of(number)) {
    directory.push_back({slot.name(), tenants_[slot.tenant()].name, slot.place().unit, slot.bytes(),
                         slot.depth(), static_cast<std::uint8_t>(slot.header_units()),
                         static_cast<std::uint8_t>(slot.mark()),
                         static_cast<std::uint8_t>(slot.heat())});
  }
  return directory;
}

Trailer DiskLog::trailer_of(std::uint32_t number, std::size_t records) const {
  const Segment& segment = segments_[number];
  Trailer trailer;
  trailer.epoch = segment.epoch;
  trailer.sequence = segment.sequence;
  trailer.records = static_cast<std::uint32_t>(records);
  trailer.used_units = segment.used_units;
  for (std::size_t i = 0; i < options_.classes.size(); ++i)
    trailer.classes[i] = checksum64(options_.classes[i].spec.name);
  return trailer;
}

std::optional<std::uint32_t> DiskLog::take_old_footer(UnixSeconds now) {
  while (!old_footers_.empty() && old_footers_.front().first <= now.value - kFooterSeconds) {
    const std::uint32_t number = old_footers_.front().second;
    old_footers_.pop_front();
    Segment& segment = segments_[number];
    if (!segment.footer_old) continue;  // used anew since
    if (segment.state == SegmentState::kSealing) {
      old_footers_.emplace_back(now.value, number);
      continue;
    }
    segment.footer_old = false;
    if (segment.state == SegmentState::kSealed) return number;
  }
  return std::nullopt;
}

// --- use and removal

void DiskLog::touch(std::span<const BlockName> path, TtlClass ttl_class, UnixSeconds now) {
  ttl_class = known(ttl_class);
  for (const BlockName& name : path) {
    DiskSlot* slot = index_.find(name);
    if (slot == nullptr) {
      seen_.see(name);  // used from memory: its write is admitted
      continue;
    }
    count(*slot, -1);
    slot->set_heat(std::min(slot->heat() + 1, DiskSlot::kHeatMax));
    Segment& segment = segments_[slot->place().segment];
    const std::uint32_t mark = slot->mark();
    const bool longer = mark == 0 || ttl(ttl_class) > ttl(static_cast<TtlClass>(mark - 1));
    if (longer && now.value + ttl(ttl_class) > expires(segment)) slot->set_mark(ttl_class + 1U);
    segment.last_use = std::max(segment.last_use, now.value);
    count(*slot, 1);
    // An open segment's footer is still to come.
    const bool told = slot->mark() == mark && slot->heat() > 1;
    if (!told && segment.state != SegmentState::kOpen && !segment.footer_old) {
      segment.footer_old = true;
      old_footers_.emplace_back(now.value, slot->place().segment);
    }
  }
}

void DiskLog::note_removal(const DiskSlot& slot, MissReason reason) {
  removals_.push_back({slot.name(), reason, segments_[slot.place().segment].ttl_class,
                       tenants_[slot.tenant()].name});
}

void DiskLog::erase(DiskSlot* slot, MissReason reason) {
  note_removal(*slot, reason);
  count(*slot, -1);
  index_.erase(slot);
}

void DiskLog::remove(const BlockName& name, MissReason reason) {
  if (DiskSlot* slot = index_.find(name)) erase(slot, reason);
}

void DiskLog::drop(const BlockName& name, DiskPlace from, MissReason reason) {
  DiskSlot* slot = index_.find(name);
  if (slot != nullptr && slot->place() == from) erase(slot, reason);
}

std::vector<DiskSlot> DiskLog::blocks_of(std::uint32_t number) {
  std::vector<DiskSlot> blocks;
  for (const std::uint32_t hash : segments_[number].hashes) {
    index_.for_each_with_hash(hash, [&](const DiskSlot& slot) {
      if (slot.place().segment == number) blocks.push_back(slot);
    });
  }
  // Blocks of equal hash were found once for each of them.
  std::ranges::sort(blocks, {}, [](const DiskSlot& slot) { return slot.place().unit; });
  const auto twice =
      std::ranges::unique(blocks, {}, [](const DiskSlot& slot) { return slot.place().unit; });
  blocks.erase(twice.begin(), twice.end());
  ENSURE(blocks.size() == segments_[number].blocks);
  return blocks;
}

void DiskLog::mark_bad(std::uint32_t number, MissReason reason) {
  Segment& segment = segments_[number];
  for (const DiskSlot& slot : blocks_of(number))
    erase(index_.find(slot.name()), reason);
  if (segment.state == SegmentState::kClean) --clean_;
  if (segment.state == SegmentState::kOpen && open_[segment.ttl_class] == number) {
    open_[segment.ttl_class].reset();
  }
  segment.state = SegmentState::kBad;
  segment.hashes = {};
}

void DiskLog::revive(std::uint32_t number) {
  ENSURE(segments_[number].state == SegmentState::kBad);
  segments_[number] = Segment();
  ++clean_;
}

// --- taking segments apart

DiskLog::Score DiskLog::score(const Segment& segment, UnixSeconds now) const {
  const auto age = static_cast<double>(std::max(now.value - segment.last_use, std::int64_t{0}));
  const auto lifetime = static_cast<double>(std::max(ttl(segment.ttl_class), std::int64_t{1}));
  const double fresh = 1 / (1 + 4 * age / lifetime);
  Score score;
  for (const TenantPart& part : segment.parts) {
    double& sum = over_share(part.tenant) ? score.above : score.within;
    sum += static_cast<double>(part.worth) * fresh;
  }
  return score;
}

std::optional<std::uint32_t> DiskLog::victim(UnixSeconds now, MissReason& reason) const {
  const Segment* expired = nullptr;
  const Segment* least = nullptr;
  Score least_score;
  const bool needed = clean_ < options_.clean_min;
  for (const Segment& segment : segments_) {
    if (segment.state != SegmentState::kSealed) continue;
    if (expires(segment) <= now.value &&
        (expired == nullptr || segment.sequence < expired->sequence)) {
      expired = &segment;
    }
    if (!needed) continue;
    const Score its = score(segment, now);
    if (least == nullptr || its < least_score ||
        (its == least_score && segment.sequence < least->sequence)) {
      least = &segment;
      least_score = its;
    }
  }
  const Segment* chosen = expired != nullptr ? expired : least;
  if (chosen == nullptr) return std::nullopt;
  reason = expired != nullptr ? MissReason::kExpired : MissReason::kEvictedDisk;
  return static_cast<std::uint32_t>(chosen - segments_.data());
}

std::optional<DiskReclaim> DiskLog::reclaim(UnixSeconds now) {
  DiskReclaim plan;
  const auto chosen = victim(now, plan.reason);
  if (!chosen) return std::nullopt;
  plan.segment = *chosen;
  Segment& segment = segments_[*chosen];
  segment.state = SegmentState::kReclaiming;
  if (plan.reason == MissReason::kEvictedDisk) evicting_others_ = score(segment, now).within > 0;
  std::vector<DiskSlot> blocks = blocks_of(*chosen);
  const auto above = [&](const DiskSlot& slot) {
    // A tenant that is alone takes nothing from anybody.
    return over_share(slot.tenant()) && tenants_[slot.tenant()].bytes < held_;
  };
  const auto rank = [&](const DiskSlot& slot) {
    return std::tuple(above(slot), slot.depth(), slot.place().unit);
  };
  std::ranges::sort(blocks, {}, rank);
  const auto cap = static_cast<std::uint64_t>(options_.reinsert_share_max * options_.segment_units);
  std::uint64_t kept = 0;
  for (const DiskSlot& slot : blocks) {
    const std::uint32_t units = slot.header_units() + units_of(slot.bytes());
    const bool used =
        slot.mark() != 0 || (plan.reason == MissReason::kEvictedDisk && slot.heat() > 0);
    const bool over = plan.reason == MissReason::kExpired && !used;
    if (used && kept + units <= cap) {
      kept += units;
      const auto target =
          slot.mark() != 0 ? static_cast<TtlClass>(slot.mark() - 1) : segment.ttl_class;
      plan.keep.push_back({slot.name(), slot.place(), units, target});
    } else {
      // A used block of an expired segment would have stayed, but for the cap.
      const MissReason reason = over          ? MissReason::kExpired
                                : above(slot) ? MissReason::kEvictedShare
                                              : MissReason::kEvictedDisk;
      erase(index_.find(slot.name()), reason);
    }
  }
  return plan;
}

void DiskLog::cleaned(std::uint32_t number) {
  ENSURE(segments_[number].state == SegmentState::kReclaiming && segments_[number].blocks == 0);
  segments_[number] = Segment();
  ++clean_;
}

// --- recovery

bool DiskLog::restore_segment(std::uint32_t number, const SegmentHeader& header, UnixSeconds now) {
  sequence_ = std::max(sequence_, header.sequence);
  Segment& segment = segments_[number];
  ENSURE(segment.state == SegmentState::kClean);
  segment.ttl_class = class_named(header.class_id);
  segment.slice_end = header.slice_end;
  std::int64_t longest = 0;
  for (const DiskClass& c : options_.classes)
    longest = std::max(longest, c.spec.ttl.count());
  if (expires(segment) + longest <= now.value) {
    segment = Segment();
    return false;
  }
  segment.state = SegmentState::kSealing;
  segment.used_units = 1;
  segment.epoch = header.epoch;
  segment.sequence = header.sequence;
  segment.last_use = std::min(header.slice_end, now.value);
  --clean_;
  return true;
}

TtlClass DiskLog::class_named(std::uint64_t name) const {
  for (std::size_t i = 0; i < options_.classes.size(); ++i) {
    if (checksum64(options_.classes[i].spec.name) == name) return static_cast<TtlClass>(i);
  }
  return 0;
}

void DiskLog::restore(std::uint32_t number, const DirectoryEntry& entry, UnixSeconds now,
                      std::span<const std::uint64_t> classes) {
  Segment& segment = segments_[number];
  ++segment.records;
  std::uint32_t mark = 0;
  if (entry.mark > 0 && entry.mark <= classes.size())
    mark = 1U + class_named(classes[entry.mark - 1U]);
  const std::int64_t longer = mark > 0 ? ttl(static_cast<TtlClass>(mark - 1)) : 0;
  if (expires(segment) + longer <= now.value) return;
  if (DiskSlot* other = index_.find(entry.name)) {
    if (segments_[other->place().segment].sequence > segment.sequence) return;
    count(*other, -1);
    index_.erase(other);
  }
  DiskSlot slot(entry.name, {number, entry.unit}, entry.bytes, entry.header_units);
  slot.set_depth(entry.depth);
  slot.set_tenant(tenant_slot(entry.tenant));
  slot.set_mark(mark);
  slot.set_heat(entry.heat);
  attach(index_.insert(slot));
}

SegmentState DiskLog::restored(std::uint32_t number, std::uint32_t used_units, bool has_footer,
                               UnixSeconds now) {
  Segment& segment = segments_[number];
  segment.used_units = used_units;
  const std::int64_t from = segment.slice_end - slice(segment.ttl_class);
  if (has_footer) {
    segment.state = SegmentState::kSealed;
    segment.hashes.shrink_to_fit();
  } else if (!open_[segment.ttl_class] && now.value >= from && now.value < segment.slice_end) {
    segment.state = SegmentState::kOpen;
    open_[segment.ttl_class] = number;
  } else if (segment.records == 0) {
    segment = Segment();
    ++clean_;
  }
  return segment.state;
}

SegmentHeader DiskLog::header_of(std::uint32_t number) const {
  const Segment& segment = segments_[number];
  SegmentHeader header;
  header.epoch = segment.epoch;
  header.sequence = segment.sequence;
  header.class_id = checksum64(options_.classes[segment.ttl_class].spec.name);
  header.slice_end = segment.slice_end;
  header.segment_units = options_.segment_units;
  return header;
}

// --- book-keeping

std::uint32_t DiskLog::tenant_slot(std::uint64_t name) {
  if (const auto known_slot = tenant_slots_.find(name); known_slot != tenant_slots_.end()) {
    return known_slot->second;
  }
  std::size_t slot = tenants_.size();
  if (slot == DiskSlot::kTenantsMax) {
    const auto idle = std::ranges::find(tenants_.begin() + 1, tenants_.end(), 0U, &Tenant::blocks);
    if (idle == tenants_.end()) return 0;
    slot = static_cast<std::size_t>(idle - tenants_.begin());
    tenant_slots_.erase(idle->name);
    *idle = Tenant{name, 0, 0};
  } else {
    tenants_.push_back({name, 0, 0});
  }
  tenant_slots_[name] = static_cast<std::uint32_t>(slot);
  return static_cast<std::uint32_t>(slot);
}

void DiskLog::count(const DiskSlot& slot, int sign) {
  // Unsigned sums wrap, so adding a negated value subtracts.
  const auto times = static_cast<std::uint64_t>(static_cast<std::int64_t>(sign));
  Segment& segment = segments_[slot.place().segment];
  segment.blocks += static_cast<std::uint32_t>(times);
  bytes_ += times * slot.bytes();
  const std::uint64_t held =
      std::uint64_t{slot.header_units() + units_of(slot.bytes())} * kUnitBytes;
  held_ += times * held;
  tenants_[slot.tenant()].bytes += times * held;
  tenants_[slot.tenant()].blocks += times;
  auto part = std::ranges::find(segment.parts, slot.tenant(), &TenantPart::tenant);
  if (part == segment.parts.end()) part = segment.parts.insert(part, {slot.tenant(), 0, 0, 0});
  part->blocks += static_cast<std::uint32_t>(times);
  part->bytes += times * slot.bytes();
  part->worth += times * worth_of(slot);
}

std::vector<DiskRemoval> DiskLog::take_removals() {
  return std::exchange(removals_, {});
}

bool DiskLog::empty_some(MissReason reason) {
  for (std::size_t i = 0; i < kShardsEmptiedPerCall && emptying_ < DiskIndex::kShards; ++i) {
    index_.for_each(emptying_, [&](const DiskSlot& slot) {
      note_removal(slot, reason);
      count(slot, -1);
      return true;
    });
    index_.clear_shard(emptying_++);
  }
  return emptying_ == DiskIndex::kShards;
}

void DiskLog::for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  for (std::size_t shard = 0; shard < DiskIndex::kShards; ++shard)
    if (!for_each_in(shard, visit)) return;
}

bool DiskLog::for_each_in(std::size_t shard,
                          const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  return index_.for_each(shard,
                         [&](const DiskSlot& slot) { return visit(slot.name(), slot.bytes()); });
}

}  // namespace penstock::kvcache
