#include "evaluate/trace.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/rng.h"

namespace penstock::evaluate {
namespace {

namespace json = boost::json;

constexpr std::int64_t kMooncakeTick = 3'000'000;

std::unexpected<Error> bad(std::size_t line, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("trace: line {}: {}", line, why));
}

// Calls `read(line text, line number)` for every line that is not empty.
Status each_line(std::string_view text,
                 const std::function<Status(std::string_view, std::size_t)>& read) {
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) TRY_STATUS(read(line, number));
  }
  return {};
}

// Adds a request after checking what every form has in common.
Status add(Trace& trace, const TraceRequest& request, std::size_t line) {
  if (request.arrival_us < 0) return bad(line, "the arrival is negative");
  if (!trace.requests.empty() && request.arrival_us < trace.requests.back().arrival_us)
    return bad(line, "time goes back");
  if (request.prompt_tokens < 1 || request.prompt_tokens > kTraceTokensMax)
    return bad(line, fmt::format("{} prompt tokens: from 1 to {}", request.prompt_tokens,
                                 kTraceTokensMax));
  if (request.output_tokens < 1 || request.output_tokens > kTraceTokensMax)
    return bad(line, fmt::format("{} output tokens: from 1 to {}", request.output_tokens,
                                 kTraceTokensMax));
  const std::int64_t needed = (request.prompt_tokens + trace.block_tokens - 1) / trace.block_tokens;
  if (request.block_count != 0 && request.block_count != needed)
    return bad(line,
               fmt::format("{} blocks of {} tokens for a prompt of {}: {} fit", request.block_count,
                           trace.block_tokens, request.prompt_tokens, needed));
  if (trace.requests.size() >= kTraceRequestsMax) return bad(line, "too many requests");
  trace.requests.push_back(request);
  return {};
}

struct Keys {
  std::string_view arrival;
  std::string_view prompt;
  std::string_view output;
  std::string_view blocks;
  double arrival_to_us;
  bool blocks_needed;
};

Status read_json_line(Trace& trace, const Keys& keys, std::string_view line, std::size_t number) {
  boost::system::error_code code;
  const json::value value = json::parse(line, code);
  if (code || !value.is_object()) return bad(number, "not a JSON object");
  const json::object& object = value.get_object();
  for (const auto& member : object)
    if (member.key() != keys.arrival && member.key() != keys.prompt &&
        member.key() != keys.output && member.key() != keys.blocks)
      return bad(number, fmt::format("unknown field {}", std::string_view(member.key())));
  TraceRequest request;
  const json::value* arrival = object.if_contains(keys.arrival);
  if (arrival == nullptr || !arrival->is_number())
    return bad(number, fmt::format("{} must be a number", keys.arrival));
  const double at = arrival->to_number<double>() * keys.arrival_to_us;
  if (!(std::abs(at) < 1e17)) return bad(number, "the arrival is out of range");
  request.arrival_us = std::llround(at);
  const auto whole = [&](std::string_view key, std::int64_t& out) -> Status {
    const json::value* found = object.if_contains(key);
    if (found == nullptr || !found->is_int64())
      return bad(number, fmt::format("{} must be a whole number", key));
    out = found->get_int64();
    return {};
  };
  TRY_STATUS(whole(keys.prompt, request.prompt_tokens));
  TRY_STATUS(whole(keys.output, request.output_tokens));
  const json::value* blocks = object.if_contains(keys.blocks);
  if (blocks == nullptr ? keys.blocks_needed : !blocks->is_array())
    return bad(number, fmt::format("{} must be a list", keys.blocks));
  request.first_block = static_cast<std::uint32_t>(trace.blocks.size());
  if (blocks != nullptr) {
    for (const json::value& block : blocks->get_array()) {
      if (!block.is_int64() || block.get_int64() < 0)
        return bad(number, fmt::format("{} must hold whole numbers from 0", keys.blocks));
      trace.blocks.push_back(static_cast<std::uint64_t>(block.get_int64()));
    }
    request.block_count = static_cast<std::uint32_t>(blocks->get_array().size());
    if (request.block_count == 0 && keys.blocks_needed) return bad(number, "no blocks");
  }
  return add(trace, request, number);
}

void close(Trace& trace, std::int64_t tick_us) {
  if (!trace.requests.empty()) trace.duration_us = trace.requests.back().arrival_us + tick_us;
}

std::optional<std::int64_t> digits(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty() || text[0] == '-')
    return std::nullopt;
  return value;
}

// "2023-11-16 18:15:46.6805900" as microseconds since 1970, the zone left out.
std::optional<std::int64_t> timestamp_us(std::string_view text) {
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[10] != ' ' || text[13] != ':' ||
      text[16] != ':')
    return std::nullopt;
  const auto year = digits(text.substr(0, 4));
  const auto month = digits(text.substr(5, 2));
  const auto day = digits(text.substr(8, 2));
  const auto hour = digits(text.substr(11, 2));
  const auto minute = digits(text.substr(14, 2));
  const auto second = digits(text.substr(17, 2));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(*year)),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  std::int64_t us = 0;
  if (text.size() > 19) {
    if (text[19] != '.' || text.size() > 29) return std::nullopt;
    std::string fraction(text.substr(20));
    if (!digits(fraction)) return std::nullopt;
    fraction.resize(6, '0');
    us = *digits(fraction);
  }
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * 1'000'000 + us;
}

}  // namespace

Result<Trace> read_mooncake(std::string_view text) {
  Trace trace{.requests = {}, .blocks = {}, .block_tokens = 512};
  const Keys keys{"timestamp", "input_length", "output_length", "hash_ids", 1000, true};
  TRY_STATUS(each_line(text, [&](std::string_view line, std::size_t number) {
    return read_json_line(trace, keys, line, number);
  }));
  close(trace, kMooncakeTick);
  trace.tick_us = kMooncakeTick;
  return trace;
}

Result<Trace> read_own(std::string_view text, std::int64_t block_tokens) {
  if (block_tokens < 1)
    return fail(ErrorCode::kInvalidArgument, "trace: blocks need at least one token");
  Trace trace{.requests = {}, .blocks = {}, .block_tokens = block_tokens};
  const Keys keys{"arrival_seconds", "prompt_tokens", "output_tokens", "blocks", 1e6, false};
  TRY_STATUS(each_line(text, [&](std::string_view line, std::size_t number) {
    return read_json_line(trace, keys, line, number);
  }));
  close(trace, 1);
  return trace;
}

Result<Trace> read_azure(std::string_view text) {
  Trace trace{.requests = {}, .blocks = {}, .block_tokens = 512};
  std::optional<std::int64_t> first;
  TRY_STATUS(each_line(text, [&](std::string_view line, std::size_t number) -> Status {
    if (number == 1) {
      if (line != "TIMESTAMP,ContextTokens,GeneratedTokens")
        return bad(1, "the header must be TIMESTAMP,ContextTokens,GeneratedTokens");
      return {};
    }
    const std::size_t a = line.find(',');
    const std::size_t b = a == std::string_view::npos ? a : line.find(',', a + 1);
    if (b == std::string_view::npos || line.find(',', b + 1) != std::string_view::npos)
      return bad(number, "three fields are needed");
    const auto at = timestamp_us(line.substr(0, a));
    const auto prompt = digits(line.substr(a + 1, b - a - 1));
    const auto output = digits(line.substr(b + 1));
    if (!at) return bad(number, "the timestamp must be like 2023-11-16 18:15:46.6805900");
    if (!prompt || !output) return bad(number, "token counts must be whole numbers");
    if (!first) first = *at;
    return add(trace, {*at - *first, *prompt, *output, 0, 0}, number);
  }));
  close(trace, 1);
  return trace;
}

Result<Trace> read_trace(std::string_view text) {
  std::string_view first = text.substr(0, text.find('\n'));
  if (first.ends_with('\r')) first.remove_suffix(1);
  if (first.starts_with("TIMESTAMP")) return read_azure(text);
  if (first.contains("\"arrival_seconds\"")) return read_own(text, 512);
  if (first.contains("\"timestamp\"")) return read_mooncake(text);
  return bad(1,
             "neither Mooncake's JSONL (timestamp, input_length, ...), nor the Azure CSV "
             "(TIMESTAMP,ContextTokens,GeneratedTokens), nor our JSONL (arrival_seconds, "
             "prompt_tokens, output_tokens)");
}

std::uint64_t block_in_copy(std::uint64_t block, std::uint32_t copy) {
  // Stafford's mixer over both: ids of different copies don't meet in practice.
  std::uint64_t x = block * 0x9E3779B97F4A7C15ULL + copy;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
  return x ^ x >> 31;
}

std::vector<Arrival> scale(const Trace& trace, const LoadOptions& options) {
  std::vector<Arrival> arrivals;
  if (trace.requests.empty() || !(options.copies > 0) || trace.duration_us <= 0) return arrivals;
  const std::int64_t duration = options.duration_us > 0 ? options.duration_us : trace.duration_us;
  Rng rng(options.seed);
  const auto whole = static_cast<std::uint32_t>(std::ceil(options.copies));
  const double part = options.copies - std::floor(options.copies);
  std::uint32_t copy = 0;
  for (std::uint32_t layer = 0; layer < whole; ++layer) {
    const bool broken = layer + 1 == whole && part > 0;
    // The copy begins somewhere in its trace; each pass after that has ids of its own.
    const auto offset =
        static_cast<std::int64_t>(options.copies == 1 && options.duration_us == 0
                                      ? 0
                                      : rng.below(static_cast<std::uint64_t>(trace.duration_us)));
    for (std::int64_t start = -offset; start < duration; start += trace.duration_us, ++copy) {
      for (std::uint32_t i = 0; i < trace.requests.size(); ++i) {
        const TraceRequest& request = trace.requests[i];
        std::int64_t at = start + request.arrival_us;
        if (options.tick_us > 0)
          at += static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(options.tick_us)));
        if (at < 0 || at >= duration) continue;
        if (broken) {
          // Whole conversations: by the first block that is not everybody's.
          const auto blocks = trace.blocks_of(request);
          const std::uint64_t conversation = blocks.size() > 1 ? blocks[1] : i;
          const double draw =
              static_cast<double>(block_in_copy(conversation, layer + 1'000'000) >> 11) * 0x1p-53;
          if (draw >= part) continue;
        }
        arrivals.push_back({at, i, copy});
      }
    }
  }
  std::ranges::sort(arrivals, [](const Arrival& a, const Arrival& b) {
    if (a.at_us != b.at_us) return a.at_us < b.at_us;
    return a.copy != b.copy ? a.copy < b.copy : a.request < b.request;
  });
  return arrivals;
}

}  // namespace penstock::evaluate
