#include "core/routing/profile.h"

#include <boost/json.hpp>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace penstock::routing {
namespace {

namespace json = boost::json;

constexpr std::string_view kTierKeys[] = {"device", "host", "disk", "peer", "cluster"};

// Reads one JSON object, remembering the first thing wrong; finish() also finds keys that nobody
// asked for.
class Reader {
 public:
  Reader(const json::value* value, std::string path) : path_(std::move(path)) {
    if (value == nullptr || !value->is_object())
      wrong(path_, "an object is needed here");
    else
      object_ = &value->get_object();
  }

  const json::value* get(std::string_view key) {
    if (object_ == nullptr) return nullptr;
    known_.insert(key);
    const json::value* value = object_->if_contains(key);
    if (value == nullptr) wrong(at(key), "missing");
    return value;
  }
  void number(std::string_view key, double& out) {
    const json::value* value = get(key);
    if (value == nullptr) return;
    if (value->is_double())
      out = value->get_double();
    else if (value->is_int64())
      out = static_cast<double>(value->get_int64());
    else
      wrong(at(key), "a number is needed here");
  }
  void whole(std::string_view key, std::int64_t& out) {
    const json::value* value = get(key);
    if (value == nullptr) return;
    if (value->is_int64())
      out = value->get_int64();
    else
      wrong(at(key), "a whole number is needed here");
  }
  void text(std::string_view key, std::string& out) {
    const json::value* value = get(key);
    if (value == nullptr) return;
    if (value->is_string())
      out = std::string_view(value->get_string());
    else
      wrong(at(key), "a string is needed here");
  }
  // Reads the object under `key` with `read(Reader&)`.
  template <typename Read>
  void object(std::string_view key, Read read) {
    const json::value* value = get(key);
    if (value == nullptr) return;
    Reader inner(value, at(key));
    if (!inner.error_) read(inner);
    if (auto status = inner.finish(); !status && !error_) error_ = std::move(status).error();
  }
  Status finish() {
    if (object_ != nullptr)
      for (const auto& member : *object_)
        if (!known_.contains(std::string_view(member.key())))
          wrong(at(member.key()), "unknown key");
    if (error_) return std::unexpected(std::move(*error_));
    return {};
  }
  void wrong(std::string field, std::string_view what) {
    if (!error_)
      error_ = Error{.code = ErrorCode::kInvalidArgument,
                     .message = fmt::format("profile: {}: {}", field, what),
                     .field = std::move(field),
                     .openai_code = {}};
  }
  std::string at(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

 private:
  const json::object* object_ = nullptr;
  std::string path_;
  std::set<std::string_view> known_;
  std::optional<Error> error_;
};

void read_pool(Reader& r, PoolProfile& pool) {
  r.whole("ranks", pool.ranks);
  r.whole("group_ranks", pool.group_ranks);
  r.whole("host_ranks", pool.host_ranks);
  r.whole("kv_tokens_per_rank", pool.kv_tokens);
  r.whole("requests_per_rank_max", pool.requests_max);
}

void read_flow(Reader& r, FlowCoefficients& flow) {
  r.number("latency_seconds", flow.latency);
  r.number("bytes_per_second", flow.bytes_per_second);
}

void read_moe(Reader& r, MoeImbalance& moe) {
  r.number("mean", moe.mean);
  r.number("spread", moe.spread);
}

void read_costs(Reader& r, CostSeeds& costs) {
  r.object("prefill", [&](Reader& o) {
    o.number("base_seconds", costs.prefill.base);
    o.number("seconds_per_token", costs.prefill.per_token);
    o.number("seconds_per_token_pair", costs.prefill.per_pair);
  });
  r.object("step", [&](Reader& o) {
    o.number("base_seconds", costs.step.base);
    o.number("seconds_per_request", costs.step.per_request);
    o.number("seconds_per_kv_token", costs.step.per_kv_token);
  });
  r.object("load", [&](Reader& o) {
    for (std::size_t tier = 0; tier < costs.load.size(); ++tier)
      o.object(kTierKeys[tier], [&](Reader& flow) { read_flow(flow, costs.load[tier]); });
  });
  r.object("transfer_same_zone", [&](Reader& o) { read_flow(o, costs.transfer_same_zone); });
  r.object("transfer_other_zone", [&](Reader& o) { read_flow(o, costs.transfer_other_zone); });
  r.object("moe_lb_prefill", [&](Reader& o) { read_moe(o, costs.prefill_moe); });
  r.object("moe_lb_decode", [&](Reader& o) { read_moe(o, costs.decode_moe); });
}

json::object print_pool(const PoolProfile& pool) {
  return {{"ranks", pool.ranks},
          {"group_ranks", pool.group_ranks},
          {"host_ranks", pool.host_ranks},
          {"kv_tokens_per_rank", pool.kv_tokens},
          {"requests_per_rank_max", pool.requests_max}};
}

json::object print_flow(const FlowCoefficients& flow) {
  return {{"latency_seconds", flow.latency}, {"bytes_per_second", flow.bytes_per_second}};
}

json::object print_moe(const MoeImbalance& moe) {
  return {{"mean", moe.mean}, {"spread", moe.spread}};
}

json::object print_costs(const CostSeeds& costs) {
  json::object load;
  for (std::size_t tier = 0; tier < costs.load.size(); ++tier)
    load[kTierKeys[tier]] = print_flow(costs.load[tier]);
  return {{"prefill", json::object{{"base_seconds", costs.prefill.base},
                                   {"seconds_per_token", costs.prefill.per_token},
                                   {"seconds_per_token_pair", costs.prefill.per_pair}}},
          {"step", json::object{{"base_seconds", costs.step.base},
                                {"seconds_per_request", costs.step.per_request},
                                {"seconds_per_kv_token", costs.step.per_kv_token}}},
          {"load", std::move(load)},
          {"transfer_same_zone", print_flow(costs.transfer_same_zone)},
          {"transfer_other_zone", print_flow(costs.transfer_other_zone)},
          {"moe_lb_prefill", print_moe(costs.prefill_moe)},
          {"moe_lb_decode", print_moe(costs.decode_moe)}};
}

// Two levels of indentation: what a person reads line by line.
void print_value(std::string& out, const json::value& value, int depth, int indent) {
  const bool open = depth > 0 && (value.is_object() || value.is_array());
  const auto line = [&](int level) { out += '\n' + std::string(2 * level, ' '); };
  if (open && value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& member : value.get_object()) {
      if (!std::exchange(first, false)) out += ',';
      line(indent + 1);
      out += json::serialize(json::string(member.key())) + ": ";
      print_value(out, member.value(), depth - 1, indent + 1);
    }
    line(indent);
    out += '}';
  } else if (open && !value.get_array().empty()) {
    out += '[';
    bool first = true;
    for (const json::value& item : value.get_array()) {
      if (!std::exchange(first, false)) out += ',';
      line(indent + 1);
      print_value(out, item, depth - 1, indent + 1);
    }
    line(indent);
    out += ']';
  } else if (value.is_double()) {
    // The shortest text that reads back equal, and a double when read.
    const std::string text = fmt::format("{}", value.get_double());
    out += text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& member : value.get_object()) {
      if (!std::exchange(first, false)) out += ", ";
      out += json::serialize(json::string(member.key())) + ": ";
      print_value(out, member.value(), 0, indent);
    }
    out += '}';
  } else {
    out += json::serialize(value);
  }
}

class Checker {
 public:
  void check(bool right, std::string_view field, std::string_view what) {
    if (!right && !error_)
      error_ = Error{.code = ErrorCode::kInvalidArgument,
                     .message = fmt::format("profile: {}: {}", field, what),
                     .field = std::string(field),
                     .openai_code = {}};
  }
  void cost(double value, std::string_view field) {
    check(value >= 0 && value <= 1e6, field, "must be a number from 0 to 1e6");
  }
  void flow(const FlowCoefficients& flow, std::string_view field) {
    cost(flow.latency, field);
    check(flow.bytes_per_second >= 0 && flow.bytes_per_second <= 1e15, field,
          "bytes_per_second must be from 0 (no such way) to 1e15");
  }
  void moe(const MoeImbalance& moe, std::string_view field) {
    check(moe.mean >= 1 && moe.mean <= 1000, field,
          "mean must be from 1 to 1000: it is the slowest rank over the mean rank");
    check(moe.spread >= 0 && moe.spread <= 3, field, "spread must be from 0 to 3");
  }
  void pool(const PoolProfile& pool, std::string_view field) {
    check(pool.ranks >= 1 && pool.ranks <= Profile::kRanksMax, field,
          "ranks must be from 1 to 65536");
    check(pool.group_ranks >= 1 && pool.ranks % std::max<std::int64_t>(pool.group_ranks, 1) == 0,
          field, "group_ranks must divide ranks");
    check(pool.host_ranks >= 1 && pool.ranks % std::max<std::int64_t>(pool.host_ranks, 1) == 0,
          field, "host_ranks must divide ranks");
    check(pool.kv_tokens >= 1 && pool.kv_tokens <= 1'000'000'000'000, field,
          "kv_tokens_per_rank must be from 1 to 1e12");
    check(pool.requests_max >= 1 && pool.requests_max <= 1'000'000, field,
          "requests_per_rank_max must be from 1 to 1000000");
  }
  Status status() {
    if (error_) return std::unexpected(std::move(*error_));
    return {};
  }

 private:
  std::optional<Error> error_;
};

}  // namespace

std::string_view to_string(ProfileBasis basis) {
  switch (basis) {
    case ProfileBasis::kPlaceholder:
      return "placeholder";
    case ProfileBasis::kEstimate:
      return "estimate";
    case ProfileBasis::kMeasured:
      return "measured";
  }
  std::unreachable();
}

Status validate(const Profile& p) {
  Checker c;
  c.check(!p.name.empty(), "name", "must not be empty");
  c.check(p.basis != ProfileBasis::kEstimate || !p.sources.empty(), "sources",
          "an estimate needs at least one source");
  c.pool(p.prefill_pool, "prefill_pool");
  c.pool(p.decode_pool, "decode_pool");
  const CostSeeds& costs = p.costs;
  c.cost(costs.prefill.base, "costs.prefill.base_seconds");
  c.cost(costs.prefill.per_token, "costs.prefill.seconds_per_token");
  c.cost(costs.prefill.per_pair, "costs.prefill.seconds_per_token_pair");
  c.check(costs.prefill.base > 0 || costs.prefill.per_token > 0, "costs.prefill",
          "prefill can't be free");
  c.cost(costs.step.base, "costs.step.base_seconds");
  c.cost(costs.step.per_request, "costs.step.seconds_per_request");
  c.cost(costs.step.per_kv_token, "costs.step.seconds_per_kv_token");
  c.check(costs.step.base > 0 || costs.step.per_request > 0, "costs.step", "a step can't be free");
  for (std::size_t tier = 0; tier < costs.load.size(); ++tier)
    c.flow(costs.load[tier], fmt::format("costs.load.{}", kTierKeys[tier]));
  c.flow(costs.transfer_same_zone, "costs.transfer_same_zone");
  c.flow(costs.transfer_other_zone, "costs.transfer_other_zone");
  c.moe(costs.prefill_moe, "costs.moe_lb_prefill");
  c.moe(costs.decode_moe, "costs.moe_lb_decode");
  c.check(p.block_tokens >= 1 && p.block_tokens <= 65'536, "block_tokens",
          "must be from 1 to 65536");
  c.check(p.kv_bytes_per_token >= 1 && p.kv_bytes_per_token <= 100'000'000, "kv_bytes_per_token",
          "must be from 1 to 1e8");
  c.check(p.chunk_budget_seconds > costs.prefill.base && p.chunk_budget_seconds <= 3600,
          "chunk_budget_seconds", "must be above costs.prefill.base_seconds and at most 3600");
  c.check(p.chunk_tokens_max >= 1 && p.chunk_tokens_max <= 1'000'000'000, "chunk_tokens_max",
          "must be from 1 to 1e9");
  c.check(p.context_tokens_max >= 1 && p.context_tokens_max <= 1'000'000'000, "context_tokens_max",
          "must be from 1 to 1e9");
  return c.status();
}

Result<Profile> parse_profile(std::string_view text) {
  boost::system::error_code code;
  const json::value value = json::parse(text, code);
  if (code)
    return fail(ErrorCode::kInvalidArgument, fmt::format("profile: not JSON: {}", code.message()));
  Profile p;
  Reader r(&value, "");
  r.text("name", p.name);
  r.text("engine", p.engine);
  std::string basis;
  r.text("basis", basis);
  bool known = false;
  for (const auto b :
       {ProfileBasis::kPlaceholder, ProfileBasis::kEstimate, ProfileBasis::kMeasured})
    if (basis == to_string(b)) {
      p.basis = b;
      known = true;
    }
  if (!known) r.wrong("basis", "must be placeholder, estimate or measured");
  if (const json::value* sources = r.get("sources"); sources != nullptr) {
    if (const json::array* list = sources->if_array(); list != nullptr) {
      for (const json::value& source : *list) {
        if (source.is_string())
          p.sources.emplace_back(std::string_view(source.get_string()));
        else
          r.wrong("sources", "a list of strings is needed here");
      }
    } else {
      r.wrong("sources", "a list of strings is needed here");
    }
  }
  r.object("prefill_pool", [&](Reader& o) { read_pool(o, p.prefill_pool); });
  r.object("decode_pool", [&](Reader& o) { read_pool(o, p.decode_pool); });
  r.object("costs", [&](Reader& o) { read_costs(o, p.costs); });
  r.whole("block_tokens", p.block_tokens);
  r.whole("kv_bytes_per_token", p.kv_bytes_per_token);
  r.number("chunk_budget_seconds", p.chunk_budget_seconds);
  r.whole("chunk_tokens_max", p.chunk_tokens_max);
  r.whole("context_tokens_max", p.context_tokens_max);
  TRY_STATUS(r.finish());
  TRY_STATUS(validate(p));
  return p;
}

std::string print_profile(const Profile& p) {
  json::array sources;
  for (const std::string& source : p.sources)
    sources.emplace_back(source);
  const json::object object{{"name", p.name},
                            {"engine", p.engine},
                            {"basis", to_string(p.basis)},
                            {"sources", std::move(sources)},
                            {"prefill_pool", print_pool(p.prefill_pool)},
                            {"decode_pool", print_pool(p.decode_pool)},
                            {"costs", print_costs(p.costs)},
                            {"block_tokens", p.block_tokens},
                            {"kv_bytes_per_token", p.kv_bytes_per_token},
                            {"chunk_budget_seconds", p.chunk_budget_seconds},
                            {"chunk_tokens_max", p.chunk_tokens_max},
                            {"context_tokens_max", p.context_tokens_max}};
  std::string out;
  print_value(out, object, 3, 0);
  return out + '\n';
}

}  // namespace penstock::routing
