// `penstock bench kv`: the KV cache service, part by part.
#include "kv.h"

#include <iterator>
#include <string_view>

namespace penstock::bench {
namespace {

struct Part {
  std::string_view tiers;  // with which it runs, beside "all"
  Result<std::vector<Figure>> (*run)(const Options&);
};

constexpr Part kParts[] = {
    {"", kv_match_figures},    {"host", kv_host_figures},       {"peer", kv_peer_figures},
    {"disk", kv_disk_figures}, {"cluster", kv_cluster_figures}, {"cluster", kv_first_token_figures},
};

}  // namespace

Result<std::vector<Figure>> run_kv(const Options& options) {
  std::vector<Figure> figures;
  for (const auto& [tier, part] : kParts) {
    if (options.kv_tier != "all" && options.kv_tier != tier) continue;
    TRY(std::vector<Figure> more, part(options));
    figures.insert(figures.end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
  }
  return figures;
}

}  // namespace penstock::bench
