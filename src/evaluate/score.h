// Scores: how many were right, and how sure that is.
//
// The interval is Wilson's for a binomial share at 95 %: it stays inside [0, 1] and is honest for
// small counts and for shares near 0 and 1, where the usual normal interval is not. Concurrency:
// pure. Source: E. B. Wilson, "Probable inference, the law of succession, and statistical
// inference", JASA 1927.
#pragma once

#include <cstdint>

namespace penstock::evaluate {

struct Score {
  std::uint64_t items = 0;  // judged
  std::uint64_t right = 0;
  std::uint64_t errors = 0;  // not answered; not among the items

  double accuracy() const;  // 0 without items
};

struct Interval {
  double low = 0;
  double high = 1;
};

Interval wilson_interval(std::uint64_t right, std::uint64_t items);

}  // namespace penstock::evaluate
