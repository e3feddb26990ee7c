// What engines tell about themselves: models, load by rank, properties.
//
// Every parser takes what is there in old and new versions of an engine and leaves out what is not:
// a load that is not reported is absent, never -1 or 0 (sglang's /v1/loads does not exist on old
// builds). Ranks stay apart: gauges of several ranks are not one gauge (aibrix#1614).
//
// Errors: none; text that can't be read has nothing in it, and the caller says so.
// Concurrency: pure. Source: facts/engines.md 4.1, 4.7, 4.8.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::dialects {

struct EngineModel {
  std::string id;
  std::uint32_t context_length = 0;  // 0: not told
  std::string root;                  // what was loaded; a LoRA adapter's is its file
  bool is_adapter = false;           // of another model, by vLLM's `parent`

  bool operator==(const EngineModel&) const = default;
};

// GET /v1/models: of vLLM and SGLang (max_model_len), of llama.cpp (meta.n_ctx_train). Nothing when
// the answer is no model list.
std::optional<std::vector<EngineModel>> parse_models(std::string_view json);

// One rank, as far as it is told.
struct RankLoad {
  std::uint32_t rank = 0;
  std::optional<double> running;
  std::optional<double> waiting;
  std::optional<double> kv_used;  // share of the KV pool, 0 to 1

  bool operator==(const RankLoad&) const = default;
};

// vLLM's /metrics: vllm:num_requests_running, _waiting, vllm:kv_cache_usage_perc (gpu_cache_usage_
// perc before), by the label `engine`. By rank, ascending.
std::vector<RankLoad> parse_vllm_metrics(std::string_view text);
// SGLang's /metrics: sglang:num_running_reqs, num_queue_reqs, token_usage, by the label dp_rank.
std::vector<RankLoad> parse_sglang_metrics(std::string_view text);
// GET /v1/loads ({"loads": [...]}) and the older /get_load ([{dp_rank, num_reqs, ...}]).
std::vector<RankLoad> parse_sglang_loads(std::string_view json);
// GET /slots of llama.cpp: each slot is busy or not; the server is one rank.
std::vector<RankLoad> parse_llamacpp_slots(std::string_view json);
// llama.cpp's /metrics, with --metrics: requests_processing, requests_deferred.
std::vector<RankLoad> parse_llamacpp_metrics(std::string_view text);

struct LlamaCppProps {
  std::uint32_t slots = 0;
  std::uint32_t context_length = 0;
};
std::optional<LlamaCppProps> parse_llamacpp_props(std::string_view json);

struct SglangInfo {
  std::string disaggregation_mode;   // "null", "prefill" or "decode"
  std::uint32_t bootstrap_port = 0;  // 0: not told
  std::uint32_t dp_size = 1;
  std::string load_balance_method;
  std::string version;
};
// GET /get_server_info and /server_info.
std::optional<SglangInfo> parse_sglang_info(std::string_view json);

// The prompt of a request as the engine would compute it: the answer of vLLM's render routes (one
// prompt; its media by hash and first token) or of a /tokenize route. Nothing when it can't be
// read.
struct RenderedPrompt {
  struct Media {
    std::uint32_t token = 0;
    std::string hash;
  };
  std::vector<std::uint32_t> tokens;
  std::vector<Media> media;  // by token
};
std::optional<RenderedPrompt> parse_rendered(std::string_view json);
// An array of token ids; nothing when it is anything else.
std::optional<std::vector<std::uint32_t>> parse_token_ids(std::string_view json);

// A line of the Prometheus text format.
struct Sample {
  std::string_view name;
  std::string_view labels;  // between the braces
  double value = 0;
};
void for_each_sample(std::string_view text, const std::function<void(const Sample&)>& take);
// The value of a label, its escapes undone; nothing when it is not there.
std::optional<std::string> label(std::string_view labels, std::string_view name);

}  // namespace penstock::dialects
