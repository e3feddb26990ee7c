#include "sim/html_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <vector>

#include <fmt/format.h>

namespace penstock::sim {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 200;
constexpr double kLeft = 56;
constexpr double kBottom = 26;

constexpr std::string_view kStyle = R"(
body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:920px;padding:0 1em;color:#1b1f24;background:#fff}
h1{font-size:20px}h2{font-size:15px;margin:1.6em 0 .2em}p{margin:.2em 0;color:#57606a}
table{border-collapse:collapse}td{padding:2px 16px 2px 0}td:last-child{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto}text{font:11px system-ui,sans-serif;fill:#57606a}
@media(prefers-color-scheme:dark){body{color:#d7dde3;background:#14181d}p,text{color:#8b949e;fill:#8b949e}}
)";

using Out = std::string;

template <typename... Args>
void put(Out& out, fmt::format_string<Args...> text, Args&&... args) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Args>(args)...);
}

std::string escaped(std::string_view text) {
  Out out;
  for (const char c : text)
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  return out;
}

std::string number(double v) {
  if (v == 0) return "0";
  if (std::abs(v) >= 1e6) return fmt::format("{:.3g}M", v / 1e6);
  if (std::abs(v) >= 1e4) return fmt::format("{:.3g}k", v / 1e3);
  return fmt::format("{:.3g}", v);
}

struct Range {
  double from = 0;
  double to = 1;
};

void open_plot(Out& out, std::string_view title, std::string_view what, double y_most, Range x,
               const std::function<std::string(double)>& x_text) {
  put(out, "<h2>{}</h2><p>{}</p><svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", title, what,
      kWidth, kHeight + kBottom + 6, title);
  for (int i = 0; i <= 4; ++i) {
    const double y = kHeight - kHeight * i / 4 + 4;
    put(out, "<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' stroke='#8884'/>", kLeft, kWidth, y, y);
    put(out, "<text x='{}' y='{:.1f}' text-anchor='end'>{}</text>", kLeft - 6, y + 4,
        number(y_most * i / 4));
  }
  for (int i = 0; i <= 6; ++i) {
    const double at = kLeft + (kWidth - kLeft - 24) * i / 6;
    put(out, "<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>", at, kHeight + kBottom,
        x_text(x.from + (x.to - x.from) * i / 6));
  }
}

void line(Out& out, const std::vector<std::pair<double, double>>& points, Range x, double y_most,
          std::string_view colour) {
  put(out, "<polyline fill='none' stroke='{}' stroke-width='1.5' points='", colour);
  for (const auto& [at, value] : points) {
    const double share = x.to > x.from ? (at - x.from) / (x.to - x.from) : 0;
    put(out, "{:.1f},{:.1f} ", kLeft + (kWidth - kLeft - 24) * share,
        4 + kHeight - kHeight * std::clamp(value / y_most, 0.0, 1.0));
  }
  out += "'/>";
}

struct Series {
  std::string_view name;
  std::string_view colour;
  std::function<double(const Sample&)> value;
};

void over_time(Out& out, const Report& r, std::string_view title, std::string_view unit,
               const std::vector<Series>& series) {
  if (r.samples.empty()) return;
  const Range x{r.samples.front().at_seconds, r.samples.back().at_seconds};
  double most = 1e-9;
  for (const Series& s : series)
    for (const Sample& sample : r.samples)
      most = std::max(most, s.value(sample));
  Out legend(unit);
  for (const Series& s : series)
    put(legend, " <span style='color:{}'>&#9632; {}</span>", s.colour, s.name);
  open_plot(out, title, legend, most, x, [](double v) { return fmt::format("{:.0f} s", v); });
  for (const Series& s : series) {
    std::vector<std::pair<double, double>> points;
    for (const Sample& sample : r.samples)
      points.emplace_back(sample.at_seconds, s.value(sample));
    line(out, points, x, most, s.colour);
  }
  out += "</svg>";
}

// Ranks from top to bottom, time from left to right, darker is more. At most 120 columns.
void heat(Out& out, const Report& r, std::string_view title, std::string_view unit,
          const std::function<const std::vector<float>&(const Sample&)>& of) {
  if (r.samples.empty() || of(r.samples.front()).empty()) return;
  const std::size_t columns = std::min<std::size_t>(r.samples.size(), 120);
  const std::size_t rows = std::min<std::size_t>(of(r.samples.front()).size(), 128);
  float most = 1e-9F;
  for (const Sample& sample : r.samples)
    for (const float v : of(sample))
      most = std::max(most, v);
  const double w = (kWidth - kLeft) / static_cast<double>(columns);
  const double h = std::clamp(256.0 / static_cast<double>(rows), 2.0, 16.0);
  put(out,
      "<h2>{}</h2><p>{}; a row per rank, darkest {}</p><svg viewBox='0 0 {} {:.0f}' role='img'"
      " aria-label='{}' shape-rendering='crispEdges'>",
      title, unit, number(static_cast<double>(most)), kWidth, h * static_cast<double>(rows) + 18,
      title);
  for (std::size_t c = 0; c < columns; ++c) {
    const Sample& sample = r.samples[c * r.samples.size() / columns];
    for (std::size_t row = 0; row < rows; ++row) {
      const float share = of(sample)[row] / most;
      if (share < 0.004F) continue;
      put(out,
          "<rect x='{:.1f}' y='{:.1f}' width='{:.2f}' height='{:.1f}' fill='#0969da' "
          "fill-opacity='{:.2f}'/>",
          kLeft + w * static_cast<double>(c), h * static_cast<double>(row), w + 0.2, h, share);
    }
  }
  put(out, "<text x='{}' y='{:.0f}'>{:.0f} s</text>", kLeft, h * static_cast<double>(rows) + 14,
      r.samples.front().at_seconds);
  put(out, "<text x='{}' y='{:.0f}' text-anchor='end'>{:.0f} s</text></svg>", kWidth - 4,
      h * static_cast<double>(rows) + 14, r.samples.back().at_seconds);
}

void distribution(Out& out, const Histogram& h, std::string_view title, double limit) {
  if (h.count() == 0) return;
  std::vector<std::pair<double, double>> points;
  const double low = std::log10(std::max(h.quantile(0.0005), 1e-4));
  const double high = std::log10(std::max(h.max(), std::pow(10, low) * 1.1));
  for (int i = 0; i <= 200; ++i) {
    const double at = low + (high - low) * i / 200;
    points.emplace_back(at, 100 * h.share_within(std::pow(10, at)));
  }
  open_plot(out, title,
            fmt::format("% at or below; p50 {}, p99 {}, limit {} s", number(h.quantile(0.5)),
                        number(h.quantile(0.99)), number(limit)),
            100, {low, high}, [](double v) { return number(std::pow(10, v)) + " s"; });
  line(out, points, {low, high}, 100, "#0969da");
  const double share = (std::log10(limit) - low) / (high - low);
  if (share > 0 && share < 1)
    put(out,
        "<line x1='{0:.1f}' x2='{0:.1f}' y1='4' y2='{1}' stroke='#cf222e' "
        "stroke-dasharray='4 3'/>",
        kLeft + (kWidth - kLeft - 24) * share, kHeight + 4);
  out += "</svg>";
}

double mean(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v)
    sum += static_cast<double>(x);
  return v.empty() ? 0 : sum / static_cast<double>(v.size());
}
double balance(const std::vector<float>& v) {
  const double m = mean(v);
  return m > 0 ? static_cast<double>(*std::ranges::max_element(v)) / m : 1;
}

}  // namespace

std::string html_report(const Report& r, std::string_view title) {
  Out out =
      "<!doctype html><html lang='en'><meta charset='utf-8'>"
      "<meta name='viewport' content='width=device-width'><title>";
  put(out, "{0}</title><style>{1}</style><h1>{0}</h1>", escaped(title), kStyle);
  out += "<table>";
  const auto row = [&out](std::string_view name, const std::string& value) {
    put(out, "<tr><td>{}</td><td>{}</td></tr>", name, value);
  };
  row("policies, prefill and decode", escaped(r.prefill_policy + ", " + r.decode_policy));
  row("arrivals in the measured time", std::to_string(r.arrivals));
  row("served in time", fmt::format("{:.2f} %", 100 * r.served_share()));
  row("refused", std::to_string(r.refused));
  row("service level", r.meets_slo() ? "met" : "missed");
  row("first token, p50 and p99",
      fmt::format("{} s, {} s", number(r.ttft.quantile(0.5)), number(r.ttft.quantile(0.99))));
  row("gap between tokens, p50 and p99",
      fmt::format("{:.1f} ms, {:.1f} ms", 1e3 * r.gaps.quantile(0.5), 1e3 * r.gaps.quantile(0.99)));
  row("hit rate", fmt::format("{:.1f} %", 100 * r.hit_rate()));
  row("prefill engines busy", fmt::format("{:.1f} %", 100 * r.prefill_busy));
  row("decode: most over mean, requests and KV",
      fmt::format("{:.3f}, {:.3f}", r.decode_requests.mean(), r.decode_kv.mean()));
  row("preemptions, engine failures, placed anew",
      fmt::format("{}, {}, {}", r.preemptions, r.failures, r.placed_anew));
  row("digest of all events", fmt::format("{:016x}", r.digest));
  out += "</table>";
  distribution(out, r.ttft, "Time to the first token", r.slo.ttft_limit);
  distribution(out, r.gaps, "Gap between tokens", r.slo.tau);
  heat(out, r, "Prefill: outstanding work", "seconds of predicted compute",
       [](const Sample& s) -> const std::vector<float>& { return s.prefill_seconds; });
  heat(out, r, "Decode: running requests", "requests",
       [](const Sample& s) -> const std::vector<float>& { return s.decode_requests; });
  heat(out, r, "Decode: KV", "tokens",
       [](const Sample& s) -> const std::vector<float>& { return s.decode_kv; });
  over_time(
      out, r, "Queue in front", "prompts",
      {{"waiting", "#0969da", [](const Sample& s) { return static_cast<double>(s.queued); }},
       {"put off", "#cf222e", [](const Sample& s) { return static_cast<double>(s.put_off); }}});
  over_time(out, r, "Hit rate so far", "% of prompt tokens",
            {{"hit", "#1a7f37", [](const Sample& s) {
                return s.prompt_tokens > 0 ? 100 * s.hit_tokens / s.prompt_tokens : 0;
              }}});
  over_time(
      out, r, "Balance", "most loaded rank over the mean",
      {{"prefill work", "#0969da", [](const Sample& s) { return balance(s.prefill_seconds); }},
       {"decode requests", "#1a7f37", [](const Sample& s) { return balance(s.decode_requests); }},
       {"decode KV", "#9a6700", [](const Sample& s) { return balance(s.decode_kv); }}});
  return out + "</html>\n";
}

}  // namespace penstock::sim
