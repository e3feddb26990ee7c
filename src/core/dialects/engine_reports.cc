#include "core/dialects/engine_reports.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "core/dialects/json_body.h"
#include "core/dialects/json_values.h"

namespace penstock::dialects {
namespace {

std::uint32_t count_at(std::string_view json, JsonPath path) {
  const auto value = integer_at(json, path);
  return value && *value > 0 && *value <= std::numeric_limits<std::uint32_t>::max()
             ? static_cast<std::uint32_t>(*value)
             : 0;
}

std::uint32_t to_rank(std::string_view text) {
  std::uint32_t rank = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), rank);
  return parsed.ec == std::errc() ? rank : 0;
}

std::string_view trim(std::string_view text) {
  const auto begin = std::min(text.find_first_not_of(" \t\r"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t\r") + 1);
}

using LoadField = std::optional<double> RankLoad::*;

// Which metric fills which field; of two names for one field the first that is there counts.
struct MetricField {
  std::string_view metric;
  LoadField field;
};

std::vector<RankLoad> loads_of(std::string_view text, std::string_view rank_label,
                               std::span<const MetricField> fields) {
  std::map<std::uint32_t, RankLoad> by_rank;
  for_each_sample(text, [&](const Sample& sample) {
    const auto field = std::ranges::find(fields, sample.name, &MetricField::metric);
    if (field == fields.end() || !std::isfinite(sample.value) || sample.value < 0) return;
    const std::uint32_t rank = to_rank(label(sample.labels, rank_label).value_or("0"));
    RankLoad& load = by_rank[rank];
    load.rank = rank;
    load.*(field->field) = sample.value;
  });
  std::vector<RankLoad> loads;
  for (const auto& [rank, load] : by_rank)
    loads.push_back(load);
  return loads;
}

}  // namespace

void for_each_sample(std::string_view text, const std::function<void(const Sample&)>& take) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    Sample sample;
    const auto name_end = std::min(line.find_first_of("{ \t"), line.size());
    sample.name = line.substr(0, name_end);
    line.remove_prefix(name_end);
    if (line.starts_with('{')) {
      // The brace that closes stands outside of quotes.
      std::size_t at = 1;
      for (bool in_quotes = false; at < line.size(); ++at) {
        if (in_quotes && line[at] == '\\') {
          ++at;
        } else if (line[at] == '"') {
          in_quotes = !in_quotes;
        } else if (line[at] == '}' && !in_quotes) {
          break;
        }
      }
      if (at >= line.size()) continue;
      sample.labels = line.substr(1, at - 1);
      line.remove_prefix(at + 1);
    }
    line = trim(line);
    const auto parsed = std::from_chars(line.data(), line.data() + line.size(), sample.value);
    if (parsed.ec == std::errc()) take(sample);
  }
}

std::optional<std::string> label(std::string_view labels, std::string_view name) {
  while (!labels.empty()) {
    const auto equals = labels.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = trim(labels.substr(0, equals));
    labels = trim(labels.substr(equals + 1));
    if (!labels.starts_with('"')) return std::nullopt;
    std::string value;
    std::size_t at = 1;
    for (; at < labels.size() && labels[at] != '"'; ++at) {
      if (labels[at] == '\\' && at + 1 < labels.size()) {
        ++at;
        value.push_back(labels[at] == 'n' ? '\n' : labels[at]);
      } else {
        value.push_back(labels[at]);
      }
    }
    if (at >= labels.size()) return std::nullopt;
    if (key == name) return value;
    labels = trim(labels.substr(at + 1));
    if (labels.starts_with(',')) labels = trim(labels.substr(1));
  }
  return std::nullopt;
}

std::optional<std::vector<EngineModel>> parse_models(std::string_view json) {
  const auto data = value_at(json, {"data"});
  const auto items = data ? elements(*data) : std::nullopt;
  if (!items) return std::nullopt;
  std::vector<EngineModel> models;
  for (const std::string_view item : *items) {
    auto id = string_at(item, {"id"});
    if (!id || id->empty()) continue;
    EngineModel model;
    model.id = std::move(*id);
    model.context_length = count_at(item, {"max_model_len"});
    if (model.context_length == 0) model.context_length = count_at(item, {"meta", "n_ctx_train"});
    model.root = string_at(item, {"root"}).value_or("");
    model.is_adapter = string_at(item, {"parent"}).has_value();
    models.push_back(std::move(model));
  }
  return models;
}

std::vector<RankLoad> parse_vllm_metrics(std::string_view text) {
  static constexpr MetricField kFields[] = {
      {"vllm:num_requests_running", &RankLoad::running},
      {"vllm:num_requests_waiting", &RankLoad::waiting},
      {"vllm:kv_cache_usage_perc", &RankLoad::kv_used},
      {"vllm:gpu_cache_usage_perc", &RankLoad::kv_used},
  };
  return loads_of(text, "engine", kFields);
}

std::vector<RankLoad> parse_sglang_metrics(std::string_view text) {
  static constexpr MetricField kFields[] = {
      {"sglang:num_running_reqs", &RankLoad::running},
      {"sglang:num_queue_reqs", &RankLoad::waiting},
      {"sglang:token_usage", &RankLoad::kv_used},
  };
  return loads_of(text, "dp_rank", kFields);
}

std::vector<RankLoad> parse_llamacpp_metrics(std::string_view text) {
  static constexpr MetricField kFields[] = {
      {"llamacpp:requests_processing", &RankLoad::running},
      {"llamacpp:requests_deferred", &RankLoad::waiting},
      {"llamacpp:kv_cache_usage_ratio", &RankLoad::kv_used},
  };
  return loads_of(text, "engine", kFields);
}

std::vector<RankLoad> parse_sglang_loads(std::string_view json) {
  const auto wrapped = value_at(json, {"loads"});
  const auto items = elements(wrapped ? *wrapped : json);
  std::vector<RankLoad> loads;
  if (!items) return loads;
  for (const std::string_view item : *items) {
    RankLoad load;
    load.rank = count_at(item, {"dp_rank"});
    load.waiting = number_at(item, {"num_waiting_reqs"});
    load.running = number_at(item, {"num_running_reqs"});
    // The older form counts all requests together.
    if (const auto all = number_at(item, {"num_reqs"}); all && !load.running)
      load.running = std::max(0.0, *all - load.waiting.value_or(0));
    load.kv_used = number_at(item, {"token_usage"});
    if (load.running || load.waiting) loads.push_back(load);
  }
  std::ranges::sort(loads, {}, &RankLoad::rank);
  return loads;
}

std::vector<RankLoad> parse_llamacpp_slots(std::string_view json) {
  const auto slots = elements(json);
  if (!slots) return {};
  double running = 0;
  for (const std::string_view slot : *slots) {
    const auto busy = value_at(slot, {"is_processing"});
    if (!busy) return {};
    running += *busy == "true" ? 1 : 0;
  }
  return {RankLoad{0, running, std::nullopt, std::nullopt}};
}

std::optional<LlamaCppProps> parse_llamacpp_props(std::string_view json) {
  LlamaCppProps props;
  props.slots = count_at(json, {"total_slots"});
  if (props.slots == 0) return std::nullopt;
  props.context_length = count_at(json, {"default_generation_settings", "n_ctx"});
  if (props.context_length == 0) props.context_length = count_at(json, {"n_ctx"});
  return props;
}

std::optional<SglangInfo> parse_sglang_info(std::string_view json) {
  SglangInfo info;
  info.disaggregation_mode = string_at(json, {"disaggregation_mode"}).value_or("null");
  info.bootstrap_port = count_at(json, {"disaggregation_bootstrap_port"});
  info.dp_size = std::max(1U, count_at(json, {"dp_size"}));
  info.load_balance_method = string_at(json, {"load_balance_method"}).value_or("");
  info.version = string_at(json, {"version"}).value_or("");
  const bool anything = value_at(json, {"dp_size"}) || value_at(json, {"disaggregation_mode"}) ||
                        !info.version.empty();
  return anything ? std::optional(std::move(info)) : std::nullopt;
}

std::optional<std::vector<std::uint32_t>> parse_token_ids(std::string_view json) {
  const auto skip_space = [&] {
    json.remove_prefix(std::min(json.find_first_not_of(" \t\r\n"), json.size()));
  };
  const auto take = [&](char c) {
    skip_space();
    if (!json.starts_with(c)) return false;
    json.remove_prefix(1);
    return true;
  };
  std::vector<std::uint32_t> ids;
  if (!take('[')) return std::nullopt;
  for (bool more = !take(']'); more;) {
    skip_space();
    std::uint32_t id = 0;
    const auto parsed = std::from_chars(json.data(), json.data() + json.size(), id);
    if (parsed.ec != std::errc()) return std::nullopt;
    json.remove_prefix(static_cast<std::size_t>(parsed.ptr - json.data()));
    ids.push_back(id);
    more = take(',');
    if (!more && !take(']')) return std::nullopt;
  }
  skip_space();
  return json.empty() ? std::optional(std::move(ids)) : std::nullopt;
}

std::optional<RenderedPrompt> parse_rendered(std::string_view json) {
  // Completions may have several prompts, each rendered: only one can be placed by its cache.
  if (const auto several = elements(json)) {
    if (several->size() != 1) return std::nullopt;
    json = several->front();
  }
  auto ids = value_at(json, {"token_ids"});
  if (!ids) ids = value_at(json, {"tokens"});
  auto tokens = ids ? parse_token_ids(*ids) : std::nullopt;
  if (!tokens) return std::nullopt;
  RenderedPrompt prompt;
  prompt.tokens = std::move(*tokens);
  for (const std::string_view kind : {"image", "video", "audio"}) {
    const auto hashes = value_at(json, {"features", "mm_hashes", kind});
    const auto places = value_at(json, {"features", "mm_placeholders", kind});
    const auto hash_list = hashes ? elements(*hashes) : std::nullopt;
    if (!hash_list || hash_list->empty()) continue;
    const auto place_list = places ? elements(*places) : std::nullopt;
    if (!place_list || place_list->size() != hash_list->size()) return std::nullopt;
    for (std::size_t i = 0; i < hash_list->size(); ++i) {
      const auto at = integer_at((*place_list)[i], {"offset"});
      auto hash = decode_string((*hash_list)[i]);
      if (!at || *at < 0 || !hash || std::cmp_greater_equal(*at, prompt.tokens.size()))
        return std::nullopt;
      prompt.media.push_back({static_cast<std::uint32_t>(*at), std::move(*hash)});
    }
  }
  std::ranges::sort(prompt.media, {}, &RenderedPrompt::Media::token);
  return prompt;
}

}  // namespace penstock::dialects
