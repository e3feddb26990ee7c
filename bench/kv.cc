// `penstock bench kv`: the KV cache service, part by part.
#include "kv.h"

#include <iterator>

namespace penstock::bench {

Result<std::vector<Figure>> run_kv(const Options& options) {
  std::vector<Figure> figures;
  for (const auto part : {kv_match_figures, kv_host_figures, kv_peer_figures, kv_disk_figures,
                          kv_first_token_figures}) {
    TRY(std::vector<Figure> more, part(options));
    figures.insert(figures.end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
  }
  return figures;
}

}  // namespace penstock::bench
