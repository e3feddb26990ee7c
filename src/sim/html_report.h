// A run as one HTML file: numbers, and plots as inline SVG. Nothing is loaded from anywhere.
//
// Plots: served in time; load per prefill rank over time (outstanding seconds) and per decode rank
// (requests, KV) as heat maps; queue in front; hit rate; balance; distributions of first-token
// times and gaps.
//
// Concurrency: pure.
#pragma once

#include <string>
#include <string_view>

#include "sim/report.h"

namespace penstock::sim {

std::string html_report(const Report& report, std::string_view title);

}  // namespace penstock::sim
