// One flipped bit: in a segment file while the daemon is stopped, or in its arena while it serves.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "core/kvcache/key_chain.h"
#include "core/kvcache/segment_format.h"
#include "io/files/kv_secret.h"
#include "io/kv/kv_server.h"
#include "tests/faults/ask.h"
#include "tests/faults/driver.h"
#include "tests/faults/engine.h"
#include "tests/faults/fault_daemon.h"
#include "tests/faults/suites.h"

namespace penstock::faults {
namespace {

using kvcache::kUnitBytes;

constexpr std::uint32_t kPromptBlocks = 12;
constexpr std::uint32_t kPromptsOfAKind = 6;
constexpr std::uint32_t kFlipsOfAStore = 10;  // then a fresh one
constexpr std::uint64_t kBudgetUs = 10'000'000;

std::string hex(const BlockKey& key) {
  std::string out;
  for (const std::uint8_t byte : key.bytes)
    out += fmt::format("{:02x}", byte);
  return out;
}

// A fixed set of prompts of both kinds of engines, and where each of their blocks belongs.
class Library {
 public:
  struct Place {
    Kind kind{};
    std::uint32_t prompt = 0;
    std::uint32_t depth = 0;
    BlockKey parent;
    auto operator<=>(const Place&) const = default;
  };

  Library(const EngineOptions& options, EngineTotals& totals) {
    for (const Kind kind : {Kind::kPlain, Kind::kSliding}) {
      EngineOptions own = options;
      own.kind = kind;
      engines_[kind] = std::make_unique<Engine>(own, totals);
      require(engines_[kind]->wait_connected(), "no connection");
      for (std::uint32_t i = 0; i < kPromptsOfAKind; ++i) {
        const std::vector<BlockKey> keys = engines_[kind]->keys(prompt(i));
        for (std::uint32_t depth = 0; depth < kPromptBlocks; ++depth)
          places_[keys[depth]] = {kind, i, depth, depth > 0 ? keys[depth - 1] : BlockKey{}};
      }
    }
  }

  const std::unordered_map<BlockKey, Place>& places() const { return places_; }
  const Place& place(const BlockKey& key) const { return places_.at(key); }

  // Reads a prompt; the engine compares every byte.
  Engine::Found fetch(Kind kind, std::uint32_t i) {
    Engine::Found found;
    // An engine may not have seen yet that the daemon was another one before.
    wait_until("the engine's connection", [&] {
      found = engines_[kind]->fetch(prompt(i), kBudgetUs);
      return found.missing != MissReason::kNoDaemon;
    });
    return found;
  }
  // Offers what is not there; afterwards everything is.
  void complete() {
    for (const auto& [kind, engine] : engines_) {
      for (std::uint32_t i = 0; i < kPromptsOfAKind; ++i) {
        const Engine::Found found = fetch_whole(kind, i);
        if (found.valid == kPromptBlocks) continue;
        require(engine->store(prompt(i), found.valid, "agent"), "a store was refused");
        engine->wait_stores();
        require(fetch_whole(kind, i).valid == kPromptBlocks, "what was stored again is no hit");
      }
    }
  }
  // Whether a fetch reads this block: of windows only the one at the end is used.
  bool reads(const BlockName& name) const {
    return name.group == KvGroup::kHistory || places_.at(name.key).depth + 1 == kPromptBlocks;
  }
  // All that is there is right, and everything is there but what comes after `lost` of its prompt.
  void require_rest(const std::optional<BlockName>& lost) {
    const Place* place = lost && reads(*lost) ? &places_.at(lost->key) : nullptr;
    for (const auto& [kind, engine] : engines_) {
      for (std::uint32_t i = 0; i < kPromptsOfAKind; ++i) {
        const Engine::Found found = fetch_whole(kind, i);
        const bool damaged = place != nullptr && place->kind == kind && place->prompt == i;
        require(damaged || found.valid == kPromptBlocks,
                "{} of {} blocks of a prompt that was not damaged are there", found.valid,
                kPromptBlocks);
        require(!damaged || found.valid <= place->depth, "a damaged block was served");
      }
    }
  }

 private:
  static Prompt prompt(std::uint32_t i) { return {i % kScopes, 100 + i, 0, kPromptBlocks}; }
  // With whole loads: a random part is no measure.
  Engine::Found fetch_whole(Kind kind, std::uint32_t i) {
    Engine::Found found = fetch(kind, i);
    while (found.valid < found.usable && found.missing == MissReason::kNone)
      found = fetch(kind, i);
    return found;
  }

  std::map<Kind, std::unique_ptr<Engine>> engines_;
  std::unordered_map<BlockKey, Place> places_;
};

std::vector<std::string> bad_keys(const boost::json::value& verified) {
  std::vector<std::string> keys;
  for (const auto& bad : verified.at("bad").as_array())
    keys.emplace_back(bad.at("key").as_string());
  return keys;
}

// --- segments

// What a bit of a segment file belongs to.
struct Hit {
  enum class What : std::uint8_t { kPayload, kRecordHeader, kPadding, kSegment, kFooter, kNothing };
  What what = What::kNothing;
  std::optional<BlockName> block;  // with the first three
  std::set<BlockName> in_segment;  // all records there
  bool has_footer = false;
  bool ambiguous = false;  // the segment has two copies of the block

  bool damages_one() const { return what == What::kPayload || what == What::kRecordHeader; }
};

constexpr const char* kWhatNames[] = {"payload",        "record header", "padding",
                                      "segment header", "footer",        "unused"};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Hit look_up(const std::string& file, std::uint64_t offset) {
  const auto bytes = std::as_bytes(std::span(file));
  Hit hit;
  const auto header = kvcache::parse_segment_header(bytes.first(kUnitBytes));
  if (!header) return hit;
  if (offset < kUnitBytes) hit.what = Hit::What::kSegment;
  std::set<BlockName> twice;
  std::uint64_t unit = 1;
  while ((unit + 1) * kUnitBytes <= file.size()) {
    const auto at = bytes.subspan(unit * kUnitBytes);
    const auto record = kvcache::parse_record_header(at, header->epoch);
    if (!record) {
      ++unit;
      continue;
    }
    const std::uint64_t begin = unit * kUnitBytes;
    const std::uint64_t payload = begin + std::uint64_t{record->header_units()} * kUnitBytes;
    if (!hit.in_segment.insert(record->info.name).second) twice.insert(record->info.name);
    unit += record->record_units();
    if (offset < begin || offset >= unit * kUnitBytes) continue;
    hit.block = record->info.name;
    const std::uint64_t head = kvcache::kRecordFixedBytes + std::uint64_t{record->slice_count} * 12;
    hit.what = offset < begin + head                                   ? Hit::What::kRecordHeader
               : offset >= payload && offset < payload + record->bytes ? Hit::What::kPayload
                                                                       : Hit::What::kPadding;
  }
  hit.ambiguous = hit.block && twice.contains(*hit.block);
  const auto last = bytes.last(kUnitBytes);
  hit.has_footer = kvcache::parse_trailer(last, header->epoch, header->segment_units).has_value();
  if (hit.has_footer && hit.what == Hit::What::kNothing && offset + 2 * kUnitBytes >= file.size())
    hit.what = Hit::What::kFooter;
  return hit;
}

// Flips a bit of a random segment: most in a record, some anywhere.
Hit flip_segment_bit(const std::string& folder, Rng& rng) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".seg") files.push_back(entry.path());
  std::ranges::sort(files);
  for (;;) {
    const auto& path = files[rng.below(files.size())];
    const std::string file = read_file(path);
    const bool anywhere = rng.below(4) == 0;
    const std::uint64_t offset = rng.below(file.size());
    Hit hit = look_up(file, offset);
    if (!anywhere && !hit.block) continue;
    // Which of two copies is the live one is the tier's matter.
    const auto holds = [&](const auto& other) {
      return look_up(read_file(other), 0).in_segment.contains(*hit.block);
    };
    if (hit.block && (hit.ambiguous || std::ranges::count_if(files, holds) > 1)) continue;
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(offset));
    out.put(static_cast<char>(file[offset] ^ static_cast<char>(1U << rng.below(8))));
    out.close();
    require(out.good(), "cannot damage {}", path.string());
    return hit;
  }
}

// After the start on a damaged store: what may be gone is gone for that reason, nothing else is.
// `known` were damaged before and are still on disk: nothing reads them but verify.
void check_segment_flip(const Hit& hit, const std::set<BlockName>& before,
                        const std::set<BlockName>& known, FaultDaemon& daemon,
                        const DaemonSetup& setup, Library& library, bool by_verify) {
  const char* what = kWhatNames[static_cast<int>(hit.what)];
  const bool one = hit.damages_one();
  const std::vector<BlockName> names = daemon.recovered_names();
  const std::set<BlockName> have(names.begin(), names.end());
  for (const BlockName& name : before) {
    const bool may_go =
        hit.what == Hit::What::kSegment ? hit.in_segment.contains(name) : one && hit.block == name;
    require(may_go || have.contains(name), "a flip in {} took a block elsewhere", what);
  }
  if (hit.what == Hit::What::kSegment) return;
  // Without a footer the records are read at the start, and a damaged one is not taken in.
  require(!one || !hit.has_footer || have.contains(*hit.block),
          "a segment with a footer was not recovered from it");
  const bool detected_later = one && hit.has_footer;
  if (by_verify || (one && !library.reads(*hit.block))) {
    std::vector<std::string> bad = bad_keys(ask(setup.socket(), "verify", R"({"tier":"disk"})"));
    std::erase_if(bad, [&](const std::string& key) {
      return std::ranges::any_of(
          known, [&](const BlockName& name) { return name != hit.block && hex(name.key) == key; });
    });
    require(detected_later ? bad == std::vector{hex(hit.block->key)} : bad.empty(),
            "verify names {} blocks after a flip in {}", bad.size(), what);
  } else if (detected_later && hit.block->group == KvGroup::kHistory) {
    const Library::Place& place = library.place(hit.block->key);
    const Engine::Found found = library.fetch(place.kind, place.prompt);
    require(found.missing == MissReason::kCorrupt, "its block missed as {}",
            to_string(found.missing));
  }
  library.require_rest(one ? hit.block : std::nullopt);
  if (!detected_later) return;
  require(ask_number(setup.socket(), "/disk/corrupt") >= 1, "it is not counted");
  wait_until("the alarm", [&] { return daemon.alarms() >= 1; });
}

void flip_segments(const SuiteOptions& options, EngineOptions engine) {
  Rng rng(options.seed);
  std::map<std::string, std::uint32_t> counts;
  for (std::uint32_t done = 0; done < options.rounds;) {
    DaemonSetup setup;
    setup.folder = options.folder;
    setup.disk_folder = fmt::format("{}/kv-{}", options.folder, done);
    setup.segments = 28;
    setup.check_all = false;  // verify and the engines are to find it
    EngineTotals totals;
    FaultDaemon daemon;
    daemon.start(setup);
    daemon.wait_ready();
    Library library(engine, totals);
    library.complete();
    std::set<BlockName> damaged;
    // Three damaged records make the tier give up their segment: not what is tested here.
    for (std::uint32_t i = 0; i < kFlipsOfAStore && done < options.rounds && damaged.size() < 2;
         ++i, ++done) {
      ask(setup.socket(), "flush");
      daemon.stop();
      const std::vector<BlockName> names = daemon.kept_names();
      const std::set<BlockName> before(names.begin(), names.end());
      const Hit hit = flip_segment_bit(setup.disk_folder, rng);
      ++counts[kWhatNames[static_cast<int>(hit.what)]];
      if (hit.what == Hit::What::kSegment) daemon.forget(hit.in_segment);
      if (hit.damages_one()) damaged.insert(*hit.block);
      daemon.forget(damaged);
      daemon.start(setup);
      daemon.wait_ready();
      check_segment_flip(hit, before, damaged, daemon, setup, library, rng.below(2) == 0);
      library.complete();
      // What is read is stored again; its new copy is the one that counts.
      std::erase_if(damaged, [&](const BlockName& name) { return library.reads(name); });
    }
    daemon.stop();
    std::filesystem::remove_all(setup.disk_folder);
    fmt::print("{} flips in segments:", done);
    for (const auto& [what, count] : counts)
      fmt::print(" {} in {}", count, what);
    fmt::print("\n");
    std::fflush(stdout);
  }
}

// --- the arena

// A daemon in this process, whose arena can be written.
class OwnDaemon {
 public:
  explicit OwnDaemon(const SuiteOptions& options) {
    kv::KvServerOptions server;
    server.socket = options.folder + "/own.sock";
    server.arena_bytes = std::uint64_t{8} << 20;
    server.daemon.epoch = 1;
    const auto secret = read_kv_secret(options.folder + "/secret");
    require(secret.has_value(), "no secret");
    server.daemon.key_check = kvcache::KeyChain(*secret).key_check();
    server.daemon.classes = {{"default", std::chrono::hours(1)}};
    auto started = kv::KvServer::start(std::move(server), nullptr);
    require(started.has_value(), "no daemon");
    server_ = std::move(*started);
    thread_ = std::thread([this] { server_->run(); });
  }
  ~OwnDaemon() {
    server_->stop();
    thread_.join();
  }
  OwnDaemon(const OwnDaemon&) = delete;
  OwnDaemon& operator=(const OwnDaemon&) = delete;
  std::span<std::byte> arena() { return server_->arena(); }

 private:
  std::unique_ptr<kv::KvServer> server_;
  std::thread thread_;
};

struct Copy {
  BlockName name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Where the library's blocks lie; those that lie twice (an old copy) are left out.
std::vector<Copy> find_copies(std::span<const std::byte> arena, const Library& library) {
  std::unordered_map<std::uint64_t, Copy> beginnings;
  for (const auto& [key, place] : library.places()) {
    const bool sliding = place.kind == Kind::kSliding;
    const auto& bytes = slice_bytes(place.kind);
    const std::uint64_t history = sliding ? bytes[0] + bytes[2] : block_bytes(place.kind);
    beginnings[SliceContent(key, 0).next()] = {{key, KvGroup::kHistory}, 0, history};
    // None is stored at depth 0; it would begin as that of depth 1 does.
    if (!sliding || place.depth == 0) continue;
    beginnings[SliceContent(place.parent, 1).next()] = {
        {key, KvGroup::kWindow}, 0, std::uint64_t{kWindowBlocks} * (bytes[1] + bytes[3])};
  }
  std::map<BlockName, std::vector<Copy>> found;
  for (std::uint64_t offset = 0; offset < arena.size(); offset += kUnitBytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, arena.data() + offset, sizeof word);
    const auto begin = beginnings.find(word);
    if (begin == beginnings.end()) continue;
    Copy copy = begin->second;
    copy.offset = offset;
    found[copy.name].push_back(copy);
  }
  std::vector<Copy> copies;
  for (const auto& [name, places] : found)
    if (places.size() == 1) copies.push_back(places[0]);
  return copies;
}

void flip_arena(const SuiteOptions& options, EngineOptions engine) {
  Rng rng(options.seed + 1);
  engine.socket = options.folder + "/own.sock";
  for (std::uint32_t done = 0; done < options.rounds;) {
    OwnDaemon daemon(options);
    std::set<BlockName> flipped;
    EngineTotals totals;
    Library library(engine, totals);
    library.complete();
    for (std::uint32_t i = 0; i < kFlipsOfAStore && done < options.rounds; ++i, ++done) {
      std::vector<Copy> copies = find_copies(daemon.arena(), library);
      // What remains of a removed copy may be another block's place by now.
      std::erase_if(copies, [&](const Copy& copy) { return flipped.contains(copy.name); });
      require(!copies.empty(), "no block is found in the arena");
      const Copy& copy = copies[rng.below(copies.size())];
      flipped.insert(copy.name);
      daemon.arena()[copy.offset + rng.below(copy.bytes)] ^= std::byte(1U << rng.below(8));
      if (rng.below(2) == 0 || !library.reads(copy.name)) {
        const auto bad = bad_keys(ask(engine.socket, "verify", R"({"tier":"host"})"));
        require(bad == std::vector{hex(copy.name.key)}, "verify names {} blocks", bad.size());
      } else {
        // The engine finds it, and tells; the daemon looks, and takes it out of use.
        const Library::Place& place = library.place(copy.name.key);
        const std::uint64_t before = ask_number(engine.socket, "/reports/confirmed");
        wait_until("the daemon to hear of it", [&] {
          library.fetch(place.kind, place.prompt);
          return ask_number(engine.socket, "/reports/confirmed") > before;
        });
        const Engine::Found found = library.fetch(place.kind, place.prompt);
        require(copy.name.group == KvGroup::kWindow || found.missing == MissReason::kCorrupt,
                "its block missed as {}", to_string(found.missing));
      }
      require(ask_number(engine.socket, "/host/removals/corrupt") == i + 1, "it is not counted");
      library.require_rest(copy.name);
      library.complete();
    }
    fmt::print("{} flips in the arena\n", done);
    std::fflush(stdout);
  }
}

}  // namespace

SuiteResult run_flips(const SuiteOptions& options) {
  EngineOptions engine;
  engine.socket = options.folder + "/kvd.sock";
  engine.secret_file = options.folder + "/secret";
  engine.seed = options.seed;
  engine.margin = options.margin;
  flip_segments(options, engine);
  flip_arena(options, engine);
  return {2 * options.rounds, 0};
}

}  // namespace penstock::faults
