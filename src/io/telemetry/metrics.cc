#include "io/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/check.h"
#include "io/telemetry/process_metrics.h"

namespace penstock {
namespace {

using CounterFamily = prometheus::Family<prometheus::Counter>;
using GaugeFamily = prometheus::Family<prometheus::Gauge>;
using HistogramFamily = prometheus::Family<prometheus::Histogram>;

struct MetricFamily {
  const MetricInfo* info = nullptr;
  std::vector<std::string> label_names;
  std::variant<CounterFamily*, GaugeFamily*, HistogramFamily*> family;
  std::unordered_map<std::string, void*> series;  // by the joined label values
};

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty()) {
    const auto comma = std::min(names.find(','), names.size());
    out.emplace_back(names.substr(0, comma));
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return out;
}

// Label values as a map key; NUL cannot be part of a value that we make.
std::string joined(std::span<const std::string_view> values) {
  std::string key;
  for (const auto value : values) {
    key.append(value);
    key.push_back('\0');
  }
  return key;
}

void* add_series(MetricFamily& metric, const prometheus::Labels& labels) {
  if (auto* const* counter = std::get_if<CounterFamily*>(&metric.family))
    return &(*counter)->Add(labels);
  if (auto* const* gauge = std::get_if<GaugeFamily*>(&metric.family)) return &(*gauge)->Add(labels);
  const auto& buckets = metric.info->buckets;
  return &std::get<HistogramFamily*>(metric.family)
              ->Add(labels,
                    prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end()));
}

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;
  std::mutex mutex;  // guards the series maps; values are atomic inside prometheus
  std::vector<MetricFamily> metrics;

  MetricFamily& at(Metric metric, MetricKind kind) {
    auto& found = metrics[static_cast<std::size_t>(metric)];
    ENSURE(found.info->kind == kind);
    return found;
  }

  void* series(MetricFamily& metric, std::span<const std::string_view> values) {
    ENSURE(values.size() == metric.label_names.size());
    std::string key = joined(values);
    if (const auto found = metric.series.find(key); found != metric.series.end())
      return found->second;
    std::vector<std::string_view> kept(values.begin(), values.end());
    // The last place is for "other", so a full metric still counts what comes.
    if (metric.series.size() + 1 >= metric.info->series_max && !values.empty()) {
      std::ranges::fill(kept, "other");
      if (metric.info->id != Metric::kMetricsSeriesDropped) note_dropped(*metric.info);
      key = joined(kept);
      if (const auto found = metric.series.find(key); found != metric.series.end())
        return found->second;
    }
    prometheus::Labels labels;
    for (std::size_t i = 0; i < kept.size(); ++i)
      labels[metric.label_names[i]] = kept[i];
    void* const made = add_series(metric, labels);
    metric.series.emplace(std::move(key), made);
    return made;
  }

  void note_dropped(const MetricInfo& info) {
    auto& dropped = at(Metric::kMetricsSeriesDropped, MetricKind::kCounter);
    const std::string_view name[] = {info.name};
    static_cast<prometheus::Counter*>(series(dropped, name))->Increment();
  }
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
  for (const auto& info : metric_table()) {
    MetricFamily metric{&info, split(info.labels), {}, {}};
    const std::string name(info.name);
    const std::string help(info.help);
    auto& registry = state_->registry;
    switch (info.kind) {
      case MetricKind::kCounter:
        metric.family = &prometheus::BuildCounter().Name(name).Help(help).Register(registry);
        break;
      case MetricKind::kGauge:
        metric.family = &prometheus::BuildGauge().Name(name).Help(help).Register(registry);
        break;
      case MetricKind::kHistogram:
        metric.family = &prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
        break;
    }
    state_->metrics.push_back(std::move(metric));
  }
}

Metrics::~Metrics() = default;

Counter Metrics::counter(Metric metric, LabelValues labels) {
  const std::lock_guard lock(state_->mutex);
  return Counter(state_->series(state_->at(metric, MetricKind::kCounter), labels));
}

Gauge Metrics::gauge(Metric metric, LabelValues labels) {
  const std::lock_guard lock(state_->mutex);
  return Gauge(state_->series(state_->at(metric, MetricKind::kGauge), labels));
}

Histogram Metrics::histogram(Metric metric, LabelValues labels) {
  const std::lock_guard lock(state_->mutex);
  return Histogram(state_->series(state_->at(metric, MetricKind::kHistogram), labels));
}

void Metrics::remove(Metric metric, LabelValues labels) {
  const std::lock_guard lock(state_->mutex);
  auto& from = state_->metrics[static_cast<std::size_t>(metric)];
  const auto found = from.series.find(joined(labels));
  if (found == from.series.end()) return;
  std::visit(
      [&](auto* family) {
        using Family = std::remove_pointer_t<decltype(family)>;
        if constexpr (std::is_same_v<Family, CounterFamily>) {
          family->Remove(static_cast<prometheus::Counter*>(found->second));
        } else if constexpr (std::is_same_v<Family, GaugeFamily>) {
          family->Remove(static_cast<prometheus::Gauge*>(found->second));
        } else {
          family->Remove(static_cast<prometheus::Histogram*>(found->second));
        }
      },
      from.family);
  from.series.erase(found);
}

std::string Metrics::exposition() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect()) + process_exposition();
}

void Counter::add(double amount) const {
  if (target_ != nullptr) static_cast<prometheus::Counter*>(target_)->Increment(amount);
}
void Gauge::set(double value) const {
  if (target_ != nullptr) static_cast<prometheus::Gauge*>(target_)->Set(value);
}
void Gauge::add(double amount) const {
  if (target_ != nullptr) static_cast<prometheus::Gauge*>(target_)->Increment(amount);
}
void Histogram::observe(double value) const {
  if (target_ != nullptr) static_cast<prometheus::Histogram*>(target_)->Observe(value);
}
void Histogram::observe(std::chrono::nanoseconds duration) const {
  observe(std::chrono::duration<double>(duration).count());
}

}  // namespace penstock
