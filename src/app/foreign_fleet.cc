#include "app/foreign_fleet.h"

#include <algorithm>
#include <utility>

#include "app/entropy.h"
#include "io/files/files.h"
#include "io/telemetry/log.h"

namespace penstock {

ForeignFleet::ForeignFleet(const Options& options)
    : options_(options),
      file_(engines_file(options)),
      prefixes_(draw_u64(), [](std::string_view text) { log_warning("{}", text); }) {}

Status ForeignFleet::load() {
  if (!file_.empty()) {
    TRY(seen_, read_file(file_, kEnginesFileMax));
  }
  TRY(const auto engines, foreign_engines(options_));
  TRY_STATUS(change_to(engines));
  return {};
}

Result<ForeignFleet::Change> ForeignFleet::reread() {
  if (file_.empty()) return Change{};
  auto text = read_file(file_, kEnginesFileMax);
  // It may be away for a moment while somebody replaces it.
  if (!text || *text == seen_) return Change{};
  seen_ = std::move(*text);
  auto engines = foreign_engines(options_);
  if (!engines) return std::unexpected(std::move(engines).error().within(file_));
  auto change = change_to(*engines);
  if (!change) return std::unexpected(std::move(change).error().within(file_));
  return change;
}

Result<ForeignFleet::Change> ForeignFleet::change_to(const std::vector<ForeignEngine>& wanted) {
  Change change;
  for (const ForeignEngine& engine : wanted) {
    if (std::ranges::find(engines_, engine, &FleetEngine::what) != engines_.end()) continue;
    FleetEngine added{{}, engine, {}};
    if (!engine.key_file.empty()) {
      TRY(added.key, load_engine_key(engine.key_file));
    }
    change.added.push_back(std::move(added));
  }
  // From here on nothing fails.
  std::erase_if(engines_, [&](const FleetEngine& engine) {
    const bool stays = std::ranges::find(wanted, engine.what) != wanted.end();
    if (!stays) change.removed.push_back(engine.id);
    if (!stays) switches_.set_drains(engine.id, false);
    return !stays;
  });
  for (FleetEngine& engine : change.added) {
    engine.id = WorkerId(next_id_++);
    prefixes_.add(engine.id, engine.what.name,
                  {engine.what.kv_events, engine.what.kv_replay, engine.what.kv_topic});
    engines_.push_back(engine);
  }
  return change;
}

}  // namespace penstock
