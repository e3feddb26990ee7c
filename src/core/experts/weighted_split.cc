#include "core/experts/weighted_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "core/experts/migrate.h"
#include "core/experts/packer.h"

namespace penstock::experts {
namespace {

constexpr int kSweepsMax = 300;
constexpr double kConverged = 1e-6;  // of the mean load of a GPU
constexpr int kBisections = 24;
constexpr int kThresholds = 32;
constexpr double kInfinite = 1e300;

double mean_load(const Shape& shape, std::span<const double> loads) {
  return std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(shape.gpus);
}

// Copies that a load needs when none may be above `most`.
double copies_needed(double load, double most) {
  return load <= most ? 1 : std::ceil(load / most - 1e-9);
}

// Pours `load` onto levels: raises the lowest to a common level. Returns what each gets.
void pour(double load, std::span<const double> levels, std::vector<std::size_t>& order,
          std::vector<double>& poured) {
  order.resize(levels.size());
  poured.assign(levels.size(), 0);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return levels[a] != levels[b] ? levels[a] < levels[b] : a < b;
  });
  double sum = load;
  double level = 0;
  std::size_t wet = 0;
  while (wet < order.size() && (wet == 0 || levels[order[wet]] < level)) {
    sum += levels[order[wet]];
    ++wet;
    level = sum / static_cast<double>(wet);
  }
  for (std::size_t i = 0; i < wet; ++i)
    poured[order[i]] = level - levels[order[i]];
}

// Two slots per GPU: a placement meant for a weighted peak of `most`, or none. The `hot` heaviest
// experts are spread over GPUs that they share with one single each: with the lightest singles,
// which leave room, and with the `alone` heaviest ones, which nothing else may join. The singles
// between pair up, heaviest with lightest.
std::optional<Placement> pair_up(const Shape& shape, std::span<const double> loads,
                                 std::span<const ExpertIndex> by_load, double most, std::size_t hot,
                                 std::size_t alone) {
  const std::size_t singles = loads.size() - hot;
  const std::size_t copies = shape.slots() - singles;  // of hot experts, one on a GPU
  if (copies < hot || copies > shape.gpus || copies > singles || alone > copies)
    return std::nullopt;
  const auto load = [&](std::size_t rank) { return loads[by_load[rank]]; };
  Placement placement;
  std::size_t low = hot + alone;
  std::size_t high = loads.size() - (copies - alone);
  while (low + 1 < high) {
    if (load(low) + load(high - 1) > most) return std::nullopt;
    placement.slots.push_back(by_load[low++]);
    placement.slots.push_back(by_load[--high]);
  }
  std::vector<std::pair<double, ExpertIndex>> rooms;  // left by each shared single
  for (std::size_t rank = hot; rank < hot + alone; ++rank)
    rooms.emplace_back(most - load(rank), by_load[rank]);
  for (std::size_t rank = loads.size() - (copies - alone); rank < loads.size(); ++rank)
    rooms.emplace_back(most - load(rank), by_load[rank]);
  std::ranges::sort(rooms);
  if (!rooms.empty() && rooms.front().first < 0) return std::nullopt;
  for (std::size_t rank = 0; rank < hot; ++rank) {
    // The least room that takes all of the rest; before that, the largest there is.
    for (double rest = load(rank); rest > 0;) {
      if (rooms.empty()) return std::nullopt;
      auto room = std::ranges::lower_bound(rooms, rest, {}, &std::pair<double, ExpertIndex>::first);
      if (room == rooms.end()) --room;
      rest -= room->first;
      placement.slots.push_back(by_load[rank]);
      placement.slots.push_back(room->second);
      rooms.erase(room);
    }
  }
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    placement.slots.push_back(by_load[i % hot]);
    placement.slots.push_back(rooms[i].second);
  }
  return placement;
}

// The least peak, to 0.1 %, at which some pairing works.
std::optional<Placement> best_pairing(const Shape& shape, std::span<const double> loads,
                                      double floor, double ceiling) {
  std::vector<ExpertIndex> by_load(loads.size());
  std::iota(by_load.begin(), by_load.end(), ExpertIndex{0});
  std::ranges::sort(by_load, [&](ExpertIndex a, ExpertIndex b) {
    return loads[a] != loads[b] ? loads[a] > loads[b] : a < b;
  });
  std::optional<Placement> best;
  while (ceiling > floor * 1.001) {
    const double most = (floor + ceiling) / 2;
    std::size_t hot = 0;
    while (hot < loads.size() && loads[by_load[hot]] > most)
      ++hot;
    std::optional<Placement> found;
    for (std::size_t more = 0; more <= 24 && !found && hot + more < loads.size(); ++more)
      for (std::size_t alone = 0; alone <= 48 && !found; ++alone)
        if (hot + more > 0) found = pair_up(shape, loads, by_load, most, hot + more, alone);
    (found ? ceiling : floor) = most;
    if (found) best = std::move(found);
  }
  return best;
}

// Whether some choice of copies could reach a peak of `most` with equal shares: see the header.
bool equal_may_reach(const Shape& shape, std::span<const double> loads, double most) {
  const std::size_t spare = shape.slots() - shape.experts;
  const auto neighbours = static_cast<double>(shape.slots_per_gpu - 1);
  const double lightest = std::ranges::min(loads) / static_cast<double>(spare + 1);
  std::vector<double> best;
  std::vector<double> next;
  for (int t = 0; t < kThresholds; ++t) {
    // From the lightest copy there could be to half the peak, evenly in the logarithm.
    const double low = std::max(lightest, most * 1e-4);
    const double h = low * std::pow(most / 2 / low, (t + 0.5) / kThresholds);
    if (h >= most / 2) continue;
    // best[k]: the least of (neighbours * heavy copies - light copies) with k spare copies used.
    best.assign(spare + 1, kInfinite);
    best[0] = 0;
    for (const double load : loads) {
      next.assign(spare + 1, kInfinite);
      for (std::size_t k = 0; k <= spare; ++k) {
        const double each = load / static_cast<double>(k + 1);
        if (each + neighbours * lightest > most) continue;
        const double copies = static_cast<double>(k + 1);
        const double worth = each > most - h ? neighbours * copies : each <= h ? -copies : 0;
        for (std::size_t used = 0; used + k <= spare; ++used)
          next[used + k] = std::min(next[used + k], best[used] + worth);
      }
      std::swap(best, next);
    }
    if (std::ranges::min(best) > 0) return false;
  }
  return true;
}

// The fewest slots, at this price of a tiny one, that a peak of `most` leaves an expert with such a
// load: see paired_floor().
double slots_beside(double load, double most, double least, double price) {
  const double room = most - least;
  double best = load <= most ? 1 + (load > room ? price : 0) : kInfinite;
  for (double full = 0; full <= load / most + 1; ++full) {
    for (double normal = 0; normal <= load / room + 1; ++normal) {
      const double rest = load - full * most - normal * room;
      const double tiny = rest <= 0 ? 0 : std::ceil(rest / least - 1e-9);
      const double slots = full + normal + tiny;
      // A lone slot is no copy; another one costs least when it is tiny.
      best = std::min(best, slots + full * price - tiny * price + (slots < 2 ? 1 - price : 0));
    }
  }
  return best;
}

// Two slots per GPU: what a neighbour takes is lost. A slot that carries more than `most` less the
// least load has a neighbour that carries less than any whole expert: a copy with a tiny share. So
// there have to be as many tiny slots as there are such full ones, heavy single experts among them.
// With a price on that (any price from 0 to 1 gives a floor) each expert's fewest slots can be had
// by itself; where they add up to more than there are, the peak is out of reach.
double paired_floor(const Shape& shape, std::span<const double> loads, double low) {
  const double least = std::ranges::min(loads);
  double high = std::ranges::max(loads) * 2;
  if (shape.slots_per_gpu != 2 || least <= 0 || low <= 2 * least) return low;
  const auto out_of_reach = [&](double most) {
    for (int tenths = 0; tenths <= 10; ++tenths) {
      double slots = 0;
      for (const double load : loads)
        slots += slots_beside(load, most, least, tenths / 10.0);
      if (slots > static_cast<double>(shape.slots()) + 1e-6) return true;
    }
    return false;
  };
  if (!out_of_reach(low)) return low;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (out_of_reach(middle) ? low : high) = middle;
  }
  return low;
}

// Every expert needs so many copies that none is above the peak.
double counted_floor(const Shape& shape, std::span<const double> loads) {
  const auto slots = static_cast<double>(shape.slots());
  double low = mean_load(shape, loads);
  double high = std::max(low, std::ranges::max(loads));
  const auto fits = [&](double most) {
    double copies = 0;
    for (const double load : loads)
      copies += copies_needed(load, most);
    return copies <= slots;
  };
  if (high <= 0 || fits(low)) return low;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return low;
}

}  // namespace

WeightedSplit split(const Shape& shape, const Placement& placement, std::span<const double> loads) {
  const std::size_t slots = placement.slots.size();
  std::vector<std::vector<std::size_t>> slots_of(shape.experts);
  for (std::size_t slot = 0; slot < slots; ++slot)
    slots_of[placement.slots[slot]].push_back(slot);
  WeightedSplit result{std::vector<double>(slots), gpu_loads(shape, placement, loads)};
  std::vector<double> amounts(slots);
  for (std::size_t slot = 0; slot < slots; ++slot)
    amounts[slot] =
        loads[placement.slots[slot]] / static_cast<double>(slots_of[placement.slots[slot]].size());
  const double tolerance = kConverged * mean_load(shape, loads);
  std::vector<double> levels;
  std::vector<double> poured;
  std::vector<std::size_t> order;
  for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
    double changed = 0;
    for (std::size_t expert = 0; expert < shape.experts; ++expert) {
      const auto& mine = slots_of[expert];
      if (mine.size() < 2) continue;
      levels.clear();
      for (const std::size_t slot : mine) {
        double& gpu = result.gpus[slot / shape.slots_per_gpu];
        gpu -= amounts[slot];
        levels.push_back(gpu);
      }
      pour(loads[expert], levels, order, poured);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        changed = std::max(changed, std::abs(poured[i] - amounts[mine[i]]));
        amounts[mine[i]] = poured[i];
        result.gpus[mine[i] / shape.slots_per_gpu] += poured[i];
      }
    }
    if (changed <= tolerance) break;
  }
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const double load = loads[placement.slots[slot]];
    result.shares[slot] = load > 0
                              ? amounts[slot] / load
                              : 1 / static_cast<double>(slots_of[placement.slots[slot]].size());
  }
  return result;
}

Result<WeightedPlan> plan_weighted(const Shape& shape, std::span<const double> loads) {
  const LayerLoads layer{.mean = {loads.begin(), loads.end()}, .deviations = {}, .windows = 0};
  WeightedPlan best;
  double least = kInfinite;
  const auto offer = [&](Placement placement) {
    WeightedSplit shares = split(shape, placement, loads);
    const double peak = std::ranges::max(shares.gpus);
    if (peak >= least) return;
    least = peak;
    best = {std::move(placement), std::move(shares)};
  };
  TRY(Placement equal, plan_layer(shape, layer, {.steps_max = 200}));
  offer(std::move(equal));
  if (shape.hierarchical()) return best;  // the ladder below knows no nodes

  const double floor = counted_floor(shape, loads);
  if (shape.slots_per_gpu == 2)
    if (auto paired = best_pairing(shape, loads, floor, least)) offer(std::move(*paired));
  Packer packer(shape.gpus, shape.slots_per_gpu, expert_risks(layer, 0));
  Packing packing;
  for (int rung = 0; rung <= 40; ++rung) {
    const double target = floor * (1 + 0.01 * rung);
    std::vector<std::uint32_t> counts;
    std::size_t used = 0;
    for (const double load : loads) {
      counts.push_back(static_cast<std::uint32_t>(
          std::clamp(copies_needed(load, target), 1.0, static_cast<double>(shape.gpus))));
      used += counts.back();
    }
    if (used > shape.slots()) continue;
    for (; used < shape.slots(); ++used) {  // what is left goes where copies are fullest
      std::size_t fullest = loads.size();
      for (std::size_t e = 0; e < loads.size(); ++e)
        if (counts[e] < shape.gpus &&
            (fullest == loads.size() || loads[e] / counts[e] > loads[fullest] / counts[fullest]))
          fullest = e;
      ++counts[fullest];
    }
    packer.pack(counts, Packer::Refine::kYes, packing);
    offer(Placement{packing.slots});
  }
  return best;
}

double weighted_floor(const Shape& shape, std::span<const double> loads) {
  return paired_floor(shape, loads, counted_floor(shape, loads));
}

double equal_floor(const Shape& shape, std::span<const double> loads) {
  double low = weighted_floor(shape, loads);
  if (low <= 0 || equal_may_reach(shape, loads, low)) return low;
  double high = std::ranges::max(loads) * static_cast<double>(shape.slots_per_gpu);
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (equal_may_reach(shape, loads, middle) ? high : low) = middle;
  }
  return low;
}

}  // namespace penstock::experts
