// The part of engine_codec.h that is about experts.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "io/control/engine_codec.h"

namespace penstock::control {
namespace {

std::unexpected<Error> broken(std::string message) {
  return fail(ErrorCode::kDataLoss, std::move(message));
}

template <typename Field>
std::size_t count(const Field& field) {
  return static_cast<std::size_t>(field.size());
}

Result<ExpertReport> decode_report(const wire::ExpertReport& in) {
  if (in.layers() > kExpertLayersMax || in.experts() > kExpertsMax ||
      count(in.picks()) != std::size_t{in.layers()} * in.experts()) {
    return broken(fmt::format("{} expert loads for {} layers of {} experts", in.picks_size(),
                              in.layers(), in.experts()));
  }
  ExpertReport out;
  out.first_layer = in.first_layer();
  out.layers = in.layers();
  out.experts = in.experts();
  out.picks.assign(in.picks().begin(), in.picks().end());
  std::size_t ranks = 0;
  if (in.has_map()) {
    TRY(out.map, decode(in.map()));
    if (out.map.layers != out.layers || out.map.experts != out.experts)
      return broken("an expert map of another size than the model");
    ranks = out.map.ranks;
  }
  if (count(in.rank_picks()) != out.layers * ranks)
    return broken(fmt::format("{} loads of expert ranks for {} layers of {} ranks",
                              in.rank_picks_size(), out.layers, ranks));
  out.rank_picks.assign(in.rank_picks().begin(), in.rank_picks().end());
  return out;
}

}  // namespace

void encode(const ExpertMap& map, wire::ExpertMap& out) {
  out.set_version(map.version);
  out.set_replaces(map.replaces);
  out.set_worker_epoch(map.worker.value);
  out.set_planner_epoch(map.planner.value);
  out.set_layers(map.layers);
  out.set_experts(map.experts);
  out.set_ranks(map.ranks);
  out.set_slots_per_rank(map.slots_per_rank);
  out.mutable_slots()->Add(map.slots.begin(), map.slots.end());
}

Result<ExpertMap> decode(const wire::ExpertMap& in) {
  const std::size_t layer_slots = std::size_t{in.ranks()} * in.slots_per_rank();
  if (in.layers() > kExpertLayersMax || in.experts() > kExpertsMax ||
      in.ranks() > kExpertSlotsMax || layer_slots > kExpertSlotsMax ||
      layer_slots * in.layers() > kExpertMapMax || count(in.slots()) != layer_slots * in.layers()) {
    return broken(fmt::format(
        "an expert map of {} slots for {} layers of {} experts on {} ranks with {} slots",
        in.slots_size(), in.layers(), in.experts(), in.ranks(), in.slots_per_rank()));
  }
  if (in.version() == 0) return broken("an expert map without a version");
  const auto there_is = [&](std::uint32_t expert) { return expert < in.experts(); };
  if (!std::ranges::all_of(in.slots(), there_is))
    return broken("an expert map that names an expert there is not");
  ExpertMap out;
  out.version = in.version();
  out.replaces = in.replaces();
  out.worker = Epoch(in.worker_epoch());
  out.planner = Epoch(in.planner_epoch());
  out.layers = in.layers();
  out.experts = in.experts();
  out.ranks = in.ranks();
  out.slots_per_rank = in.slots_per_rank();
  out.slots.assign(in.slots().begin(), in.slots().end());
  return out;
}

void encode(const ExpertUse& use, wire::ExpertUse& out) {
  out.set_map_version(use.map_version);
  out.set_first_layer(use.first_layer);
  out.mutable_picks()->Add(use.picks.begin(), use.picks.end());
  out.mutable_paced()->Add(use.paced.begin(), use.paced.end());
}

Result<std::vector<ExpertUse>> decode(
    const google::protobuf::RepeatedPtrField<wire::ExpertUse>& uses) {
  std::vector<ExpertUse> out;
  for (const wire::ExpertUse& use : uses) {
    if (count(use.picks()) > kExpertLayersMax || use.picks_size() != use.paced_size())
      return broken(
          fmt::format("expert loads of {} and {} layers", use.picks_size(), use.paced_size()));
    out.push_back({use.map_version(),
                   use.first_layer(),
                   {use.picks().begin(), use.picks().end()},
                   {use.paced().begin(), use.paced().end()}});
  }
  return out;
}

void encode(const Result<ExpertReport>& report, wire::ExpertAnswer& out) {
  if (!report) {
    out.set_error_code(static_cast<std::uint32_t>(report.error().code));
    out.set_error_message(clean_utf8(report.error().message, kErrorTextMax));
    return;
  }
  wire::ExpertReport& to = *out.mutable_report();
  to.set_first_layer(report->first_layer);
  to.set_layers(report->layers);
  to.set_experts(report->experts);
  to.mutable_picks()->Add(report->picks.begin(), report->picks.end());
  if (report->map.version != 0) encode(report->map, *to.mutable_map());
  to.mutable_rank_picks()->Add(report->rank_picks.begin(), report->rank_picks.end());
}

Result<Result<ExpertReport>> decode(const wire::ExpertAnswer& in) {
  if (!in.has_report()) {
    if (in.error_code() > static_cast<std::uint32_t>(ErrorCode::kInternal) ||
        in.error_message().size() > kErrorTextMax) {
      return broken(fmt::format("unknown error code {} or too long a text", in.error_code()));
    }
    return Result<ExpertReport>(fail(static_cast<ErrorCode>(in.error_code()), in.error_message()));
  }
  TRY(auto report, decode_report(in.report()));
  return Result<ExpertReport>(std::move(report));
}

}  // namespace penstock::control
