#include "app/placement_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "app/text_layout.h"

namespace penstock {
namespace {

namespace json = boost::json;

json::value leg_json(const std::optional<gateway::LegExplanation>& leg) {
  if (!leg) return nullptr;
  json::array best;
  for (const gateway::CandidateExplanation& c : leg->best) {
    best.push_back({{"rank", c.rank},
                    {"score", c.score ? json::value(*c.score) : json::value(nullptr)},
                    {"requests", c.requests},
                    {"kv_tokens", c.kv_tokens},
                    {"kv_capacity", c.kv_capacity},
                    {"queue_ms", c.queue_seconds * 1e3},
                    {"compute_ms", c.compute_seconds * 1e3},
                    {"transfer_ms", c.transfer_seconds * 1e3},
                    {"load_ms", c.load_seconds * 1e3},
                    {"step_ms", c.step_seconds * 1e3},
                    {"moe_lb", c.moe_lb > 0 ? json::value(c.moe_lb) : json::value(nullptr)}});
  }
  return {{"policy", leg->policy},
          {"reason", leg->reason},
          {"chosen", leg->chosen.empty() ? json::value(nullptr) : json::value(leg->chosen)},
          {"ranks", leg->ranks},
          {"candidates", leg->candidates},
          {"best", std::move(best)}};
}

json::value placement_json(const gateway::PlacementExplanation& placed) {
  return {{"model", placed.model},
          {"move", placed.placement},
          {"tokens", placed.tokens},
          {"cached_tokens", placed.cached_tokens},
          {"cached_on_disk", placed.cached_on_disk},
          {"cached_remotely", placed.cached_remotely},
          {"output_tokens", placed.output_tokens},
          {"queued_ms", std::chrono::duration<double, std::milli>(placed.queued).count()},
          {"summary", placed.summary},
          {"prefill", leg_json(placed.prefill)},
          {"decode", leg_json(placed.decode)}};
}

std::string text_at(const json::object& object, std::string_view key) {
  const json::value* const value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}

double number_at(const json::object& object, std::string_view key) {
  const json::value* const value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<double>() : 0;
}

std::string leg_text(std::string_view kind, const json::object& placed) {
  const json::value* const value = placed.if_contains(kind);
  const json::object* const leg = value == nullptr ? nullptr : value->if_object();
  if (leg == nullptr) return {};
  const std::string chosen = text_at(*leg, "chosen");
  std::string out =
      fmt::format("\n{}: {} chose {}, {} ({} candidates of {} ranks)\n", kind,
                  text_at(*leg, "policy"), chosen.empty() ? "none" : chosen,
                  text_at(*leg, "reason"), number_at(*leg, "candidates"), number_at(*leg, "ranks"));
  std::vector<std::vector<std::string>> rows = {{"rank", "score", "requests", "KV tokens", "of",
                                                 "queue ms", "compute ms", "transfer ms", "load ms",
                                                 "step ms", "moe_lb"}};
  const json::value* const best = leg->if_contains("best");
  if (best == nullptr || !best->is_array()) return out;
  for (const json::value& each : best->get_array()) {
    const json::object* const c = each.if_object();
    if (c == nullptr) continue;
    const json::value* const score = c->if_contains("score");
    const double capacity = number_at(*c, "kv_capacity");
    const double moe_lb = number_at(*c, "moe_lb");
    rows.push_back({text_at(*c, "rank"),
                    score != nullptr && score->is_number()
                        ? fmt::format("{:.6g}", score->to_number<double>())
                        : "no",
                    fmt::format("{}", number_at(*c, "requests")),
                    fmt::format("{}", number_at(*c, "kv_tokens")),
                    capacity > 0 ? fmt::format("{}", capacity) : "-",
                    fmt::format("{:.1f}", number_at(*c, "queue_ms")),
                    fmt::format("{:.1f}", number_at(*c, "compute_ms")),
                    fmt::format("{:.1f}", number_at(*c, "transfer_ms")),
                    fmt::format("{:.1f}", number_at(*c, "load_ms")),
                    fmt::format("{:.1f}", number_at(*c, "step_ms")),
                    moe_lb > 0 ? fmt::format("{:.3f}", moe_lb) : "-"});
  }
  return out + table(rows, {false, true, true, true, true, true, true, true, true, true, true});
}

}  // namespace

void PlacementHistory::add(gateway::PlacementExplanation explanation) {
  const std::lock_guard lock(mutex_);
  if (kept_.size() < kept_max_) {
    kept_.push_back(std::move(explanation));
    return;
  }
  if (kept_.empty()) return;
  kept_[oldest_] = std::move(explanation);
  oldest_ = (oldest_ + 1) % kept_.size();
}

std::optional<std::string> PlacementHistory::find_json(std::string_view request_id) const {
  std::vector<gateway::PlacementExplanation> found;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      const auto& each = kept_[(oldest_ + i) % kept_.size()];
      if (each.request_id == request_id) found.push_back(each);
    }
  }
  if (found.empty()) return std::nullopt;
  json::array placements;
  for (const gateway::PlacementExplanation& placed : found)
    placements.push_back(placement_json(placed));
  return json::serialize(
      json::object{{"request", request_id}, {"placements", std::move(placements)}});
}

std::string explanation_text(std::string_view text) {
  boost::system::error_code error;
  const json::value parsed = json::parse(text, error);
  const json::object* const all = error ? nullptr : parsed.if_object();
  const json::value* const list = all == nullptr ? nullptr : all->if_contains("placements");
  if (list == nullptr || !list->is_array()) return std::string(text);
  std::string out = fmt::format("request {}\n", text_at(*all, "request"));
  for (const json::value& each : list->get_array()) {
    const json::object* const placed = each.if_object();
    if (placed == nullptr) continue;
    const double move = number_at(*placed, "move");
    out += fmt::format(
        "\n{}: model {}, {} tokens, of them {} expected from the cache; {} expected of the answer; "
        "waited {:.1f} ms\n{}\n",
        move > 0 ? fmt::format("move {}", move) : "placed", text_at(*placed, "model"),
        number_at(*placed, "tokens"), number_at(*placed, "cached_tokens"),
        number_at(*placed, "output_tokens"), number_at(*placed, "queued_ms"),
        text_at(*placed, "summary"));
    out += leg_text("prefill", *placed);
    out += leg_text("decode", *placed);
  }
  return out;
}

}  // namespace penstock
