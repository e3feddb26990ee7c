#include "bench.h"

#include <algorithm>

#include "gateway_idle.h"

namespace penstock::bench {

const std::vector<Bench>& all() {
  static const std::vector<Bench> benches = {
      {"engine", "prefill against OpenBLAS, decode against a plain read", run_engine},
      {"tokenizer", "encoding against the native Hugging Face tokenizers, and its limits",
       run_tokenizer},
      {"control", "submit to first output and frames per second, over a Unix socket", run_control},
      {"kv", "the KV cache: keys, match, index memory", run_kv},
      {"transfer", "KV out of another process's pool: shared memory, TCP, UCX", run_transfer},
      {"experts", "expert placement against the public EPLB, and planning time", run_experts},
      {"routing", "one placement decision over 1,024 ranks, every policy", run_routing},
      {"pd", "prefill and decode apart against mixed workers, and what the gateway costs", run_pd},
      {"gateway", "a worker that answers at once behind the gateway, against nginx as a proxy",
       run_gateway},
      {"gateway-idle", "the memory of a gateway that is asked nothing for ten minutes",
       run_gateway_idle},
      {"proxy", "an OpenAI-speaking engine behind the gateway, against nginx as a proxy",
       run_proxy},
      {"grammar", "compiling a schema and token masks for structured output", run_grammar},
      {"index", "what other engines hold: operations, KV events, memory, lookups", run_index},
  };
  return benches;
}

Figure more_is_better(std::string name, double value, std::string unit, std::string baseline_name,
                      double baseline, double aim) {
  return {std::move(name),
          value,
          std::move(unit),
          std::move(baseline_name),
          baseline,
          baseline > 0 ? value / baseline : 0,
          aim,
          {}};
}

Figure at_most(std::string name, double value, std::string unit, double limit) {
  return {std::move(name),
          value,
          std::move(unit),
          "limit",
          limit,
          value > 0 ? limit / value : 0,
          1,
          {}};
}

Figure at_least(std::string name, double value, std::string unit, double limit) {
  return {std::move(name), value, std::move(unit), "limit", limit, value / limit, 1, {}};
}

Figure skipped(std::string name, std::string unit, std::string baseline_name, double aim,
               std::string why) {
  return {std::move(name), 0, std::move(unit), std::move(baseline_name), 0, 0, aim, std::move(why)};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace penstock::bench
