// penstock bench pd: prefill and decode in separate workers against workers that do both.
#include "pd.h"

namespace penstock::bench {

Result<std::vector<Figure>> run_pd(const Options& options) {
  TRY(std::vector<Figure> figures, pd_pool_figures(options));
  TRY(const std::vector<Figure> more, pd_gateway_figures(options));
  figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

}  // namespace penstock::bench
