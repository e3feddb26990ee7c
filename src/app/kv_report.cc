#include "app/kv_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <map>
#include <utility>
#include <vector>

#include "app/console.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "base/hash.h"

namespace penstock {
namespace {

namespace json = boost::json;
using Rows = std::vector<std::vector<std::string>>;

// What a reason means to people, and what they can do.
constexpr std::pair<std::string_view, std::string_view> kReasons[] = {
    {"never_stored", "nobody stored it: the text is new from here on"},
    {"not_admitted", "seen once, kept off the disk, and evicted from memory since"},
    {"expired", "not used for its class's lifetime (kv.classes)"},
    {"evicted_host", "memory was needed and the disk did not have it (kv.host_memory)"},
    {"evicted_disk", "disk space was needed for blocks worth more (kv.disk_size)"},
    {"evicted_share", "its tenant holds more than its share of the disk"},
    {"parent_gone", "a block before it went first"},
    {"other_scope", "the same text is stored, for somebody else (kv.scope)"},
    {"other_build", "the same text is stored by another model, engine build or KV type"},
    {"too_slow", "it had not arrived when the request stopped waiting (kv.fetch_time)"},
    {"recompute_faster", "computing it was predicted to be faster than loading it"},
    {"corrupt", "a checksum did not match; the copy is quarantined"},
    {"io_error", "the disk failed to read it"},
    {"tier_off", "the disk, or the cluster store, is out of service"},
    {"no_daemon", "the KV daemon was not there, or ended before it answered"},
    {"removed", "removed by hand"},
};

std::string_view meaning(std::string_view reason) {
  for (const auto& [name, text] : kReasons) {
    if (name == reason) return text;
  }
  return reason;
}

std::int64_t number(const json::value& object, std::string_view key) {
  const json::value* const value = object.as_object().if_contains(key);
  return value == nullptr || value->is_null() ? 0 : value->to_number<std::int64_t>();
}

double real(const json::value& object, std::string_view key) {
  const json::value* const value = object.as_object().if_contains(key);
  return value == nullptr || value->is_null() ? 0 : value->to_number<double>();
}

std::string text(const json::value& object, std::string_view key) {
  const json::value* const value = object.as_object().if_contains(key);
  return value == nullptr || !value->is_string() ? "" : std::string(value->get_string());
}

std::string bytes(const json::value& object, std::string_view key) {
  return describe_bytes(Bytes(number(object, key)));
}

// "3m", "2h": how long ago something was used.
std::string age(const json::value& object, std::string_view key) {
  const auto seconds = static_cast<std::int64_t>(real(object, key));
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  return seconds < 172'800 ? fmt::format("{} h", seconds / 3600)
                           : fmt::format("{} d", seconds / 86'400);
}

std::string counts(const json::value& object, std::string_view key) {
  std::string out;
  const json::value* const all = object.as_object().if_contains(key);
  if (all == nullptr || !all->is_object()) return "none";
  for (const auto& [name, count] : all->get_object()) {
    if (name == "none") continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", count.to_number<std::int64_t>(), std::string_view(name));
  }
  return out.empty() ? "none" : out;
}

// Tenants by their hash, as far as scopes tell their names.
std::map<std::string, std::string> tenant_names(std::string_view ls) {
  std::map<std::string, std::string> names = {{"0000000000000000", "(none)"}};
  boost::system::error_code error;
  const json::value list = json::parse(ls, error);
  if (error || !list.is_object() || !list.get_object().contains("roots")) return names;
  for (const json::value& root : list.at("roots").as_array()) {
    const std::string scope = text(root, "scope");
    std::string_view name = scope;
    name = name.substr(name.find(':') + 1);
    name = name.substr(0, name.find('/'));
    names[fmt::format("{:016x}", checksum64(name))] = name;
  }
  return names;
}

// `render` on the parsed text; the text itself when it is something else.
template <typename Render>
std::string rendered(std::string_view source, Render render) {
  try {
    return render(json::parse(source));
  } catch (const std::exception&) {
    return pretty_json(source);
  }
}

// "ok", or what is wrong, and what waits to be written.
std::string cluster_state(const json::value& cluster) {
  std::string state = text(cluster, "state");
  if (number(cluster, "writes_queued") > 0)
    state += fmt::format(", {} writes wait", number(cluster, "writes_queued"));
  if (const auto* spill = cluster.as_object().if_contains("spill");
      spill != nullptr && number(*spill, "waiting") > 0)
    state +=
        fmt::format(", {} wait on disk ({})", number(*spill, "waiting"), bytes(*spill, "bytes"));
  if (number(cluster, "target_bytes") > 0)
    state += fmt::format(", target {}", bytes(cluster, "target_bytes"));
  return state;
}

std::string tiers(const json::value& stat) {
  Rows rows = {{"tier", "blocks", "used", "of", "idle median", "oldest", "removed", "state"}};
  const json::value& host = stat.at("host");
  std::string held = number(host, "pinned_blocks") == 0
                         ? "ok"
                         : fmt::format("ok, {} blocks being read", number(host, "pinned_blocks"));
  if (number(host, "quarantined_bytes") + number(host, "corrupt_bytes") > 0) {
    held += fmt::format(", {} in quarantine", bytes(host, "quarantined_bytes"));
  }
  rows.push_back({"memory", fmt::to_string(number(host, "blocks")), bytes(host, "bytes"),
                  bytes(host, "arena_bytes"), age(host, "median_idle_seconds"),
                  age(host, "oldest_idle_seconds"), counts(host, "removals"), held});
  if (const json::value& disk = stat.at("disk"); disk.is_object()) {
    rows.push_back({"disk", fmt::to_string(number(disk, "blocks")), bytes(disk, "bytes"),
                    bytes(disk, "bytes_total"), age(disk, "median_idle_seconds"),
                    age(disk, "oldest_idle_seconds"), counts(disk, "removals"),
                    text(disk, "state")});
  }
  if (const json::value& cluster = stat.at("cluster"); cluster.is_object()) {
    rows.push_back({"cluster", "", bytes(cluster, "bytes"), bytes(cluster, "bytes_total"), "", "",
                    "", cluster_state(cluster)});
  }
  if (const json::value& peers = stat.at("peers"); peers.is_object()) {
    rows.push_back({"other hosts", fmt::to_string(number(peers, "blocks")), "", "", "", "", "",
                    text(peers, "state")});
  }
  return table(rows, {false, true, true, true, true, true});
}

std::string tenants(const json::value& stat, std::string_view ls) {
  const auto names = tenant_names(ls);
  Rows rows = {{"class", "tenant", "in memory", "on disk", "stored", "hits memory", "hits disk",
                "hits peers", "hits cluster", "hit tokens", "misses", "hit rate", "removed",
                "removed from disk"}};
  for (const json::value& row : stat.at("tenants").as_array()) {
    const auto known = names.find(text(row, "tenant"));
    const std::int64_t hits = number(row, "hit_blocks_host") + number(row, "hit_blocks_disk") +
                              number(row, "hit_blocks_peer") + number(row, "hit_blocks_cluster");
    const std::int64_t all = hits + number(row, "miss_blocks");
    rows.push_back({text(row, "class"), known == names.end() ? text(row, "tenant") : known->second,
                    bytes(row, "host_bytes"), bytes(row, "disk_bytes"),
                    fmt::to_string(number(row, "stored_blocks")),
                    fmt::to_string(number(row, "hit_blocks_host")),
                    fmt::to_string(number(row, "hit_blocks_disk")),
                    fmt::to_string(number(row, "hit_blocks_peer")),
                    fmt::to_string(number(row, "hit_blocks_cluster")),
                    fmt::to_string(number(row, "hit_tokens")),
                    fmt::to_string(number(row, "miss_blocks")),
                    all == 0 ? "-" : fmt::format("{} %", 100 * hits / all), counts(row, "removals"),
                    counts(row, "disk_removals")});
  }
  return rows.size() == 1
             ? "nothing was stored or asked for yet\n"
             : table(rows, {false, false, true, true, true, true, true, true, true, true});
}

std::string capacity(const json::value& stat) {
  const json::value* const known = stat.as_object().if_contains("capacity");
  if (known == nullptr) return "";
  const json::value* const curve = known->as_object().if_contains("hit_rate_by_bytes");
  if (curve == nullptr || !curve->is_array() || curve->get_array().empty()) return "";
  Rows rows = {{"capacity", "estimated hit rate"}};
  for (const json::value& point : curve->get_array()) {
    rows.push_back({bytes(point, "bytes"),
                    fmt::format("{:.1f} %", 100 * point.at("hit_rate").to_number<double>())});
  }
  return "\n" + table(rows, {true, true});
}

std::string run_line(const json::value& run) {
  const std::int64_t first = number(run, "first_block");
  const std::int64_t count = number(run, "blocks");
  const std::string range = count == 1 ? fmt::format("block {}", first)
                                       : fmt::format("blocks {} to {}", first, first + count - 1);
  const std::string tier = text(run, "served_from");
  if (!tier.empty()) return fmt::format("  {}: from {}\n", range, tier == "host" ? "memory" : tier);
  const std::string reason = text(run, "missed");
  std::string line = fmt::format("  {}: not there ({}): {}", range, reason, meaning(reason));
  if (const std::int64_t since = number(run, "since"); since > 0) {
    line += fmt::format(", since {:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(since));
  }
  if (const json::value* const other = run.as_object().if_contains("stored_under")) {
    line += fmt::format("; stored in scope {} by {}", text(*other, "scope"), text(*other, "build"));
  }
  return line + "\n";
}

}  // namespace

std::string kv_stat_text(std::string_view stat, std::string_view ls) {
  return rendered(stat, [&](const json::value& s) {
    const json::value& acquires = s.at("acquires");
    return tiers(s) + "\n" + tenants(s, ls) +
           fmt::format("\n{} requests asked, {} tokens were hits; prefixes ended by: {}\n",
                       number(acquires, "count"), number(acquires, "hit_tokens"),
                       counts(acquires, "prefix_ended_by")) +
           capacity(s);
  });
}

std::string kv_list_text(std::string_view ls) {
  return rendered(ls, [&](const json::value& list) {
    Rows rows = {{"scope", "blocks in memory", "bytes", "root", "build"}};
    for (const json::value& root : list.at("roots").as_array()) {
      rows.push_back({text(root, "scope"), fmt::to_string(number(root, "host_blocks")),
                      bytes(root, "host_bytes"), text(root, "root").substr(0, 8),
                      text(root, "build")});
    }
    std::string out =
        rows.size() == 1 ? "no scope is known yet\n" : table(rows, {false, true, true});
    // The disk's index knows names, not scopes.
    if (const auto* disk = list.as_object().if_contains("disk"); disk && disk->is_object()) {
      out += fmt::format("\non disk, all scopes: {} blocks, {}\n", number(*disk, "blocks"),
                         bytes(*disk, "bytes"));
      for (const json::value& c : disk->at("classes").as_array()) {
        out += fmt::format("  {}: {} blocks in {} segments\n", text(c, "class"),
                           number(c, "blocks"), number(c, "segments"));
      }
    }
    if (const auto* cluster = list.as_object().if_contains("cluster");
        cluster && cluster->is_object()) {
      out += fmt::format(
          "\nin the cluster store, all hosts: {} objects, {} of {}; this host knows of {} blocks\n",
          number(*cluster, "objects"), bytes(*cluster, "bytes"), bytes(*cluster, "bytes_total"),
          number(*cluster, "known_blocks"));
    }
    return out;
  });
}

std::string kv_explain_text(std::string_view explain) {
  return rendered(explain, [&](const json::value& answer) {
    std::string out;
    bool is_new = false;
    for (const json::value& a : answer.at("acquires").as_array()) {
      out += fmt::format("{} in scope {}: {} of {} blocks served\n", text(a, "request"),
                         text(a, "scope"), number(a, "blocks_served"), number(a, "blocks_asked"));
      std::int64_t told = 0;
      for (const json::value& run : a.at("runs").as_array()) {
        out += run_line(run);
        told += number(run, "blocks");
        is_new |= text(run, "missed") == "never_stored";
      }
      if (told < number(a, "blocks_asked")) {
        out += fmt::format("  {} further blocks are not explained, only the first ones are kept\n",
                           number(a, "blocks_asked") - told);
      }
      if (const json::value* const p = a.as_object().if_contains("predicted")) {
        out += fmt::format(
            "  load or compute: loading {} was predicted to take {:.1f} ms, the rest of the prompt "
            "{:.1f} ms to compute, all of it {:.1f} ms; the fetch took {:.1f} ms\n",
            bytes(*p, "load_bytes"), real(*p, "load_ms"), real(*p, "prefill_after_ms"),
            real(*p, "prefill_without_ms"), real(a, "took_ms"));
      }
    }
    if (const std::int64_t since = number(answer, "daemon_started"); is_new && since > 0) {
      out += fmt::format(
          "this KV daemon was started at {:%Y-%m-%d %H:%M:%S} UTC; what only the memory of the one "
          "before it held counts as never stored\n",
          fmt::gmtime(since));
    }
    return out;
  });
}

std::string kv_gc_text(std::string_view gc) {
  return rendered(gc, [](const json::value& g) {
    const json::value* const dry = g.as_object().if_contains("dry_run");
    const bool is_dry = dry != nullptr && dry->is_bool() && dry->get_bool();
    const char* const were = is_dry ? "would be" : "were";
    std::string out = fmt::format(
        "{} blocks whose ancestors are gone {} removed from memory; {} of corrupt copies {} back "
        "into use\n",
        number(g, "orphan_blocks"), were, bytes(g, "corrupt_bytes_reused"),
        is_dry ? "would go" : "went");
    const json::value* const c = g.as_object().if_contains("cluster");
    if (c == nullptr) return out;
    const std::int64_t target = number(*c, "target_bytes");
    out += fmt::format(
        "cluster store{}: {} objects of {} {} removed, {} used since {} kept; {} of {} slices "
        "looked at\n",
        target > 0 ? " (target " + bytes(*c, "target_bytes") + ")" : "", number(*c, "removed"),
        bytes(*c, "removed_bytes"), were, number(*c, "kept"), were, number(*c, "swept"),
        number(*c, "manifests"));
    if (!c->at("whole").as_bool())
      out +=
          fmt::format("the store failed to answer, the next run goes on: {}\n", text(*c, "state"));
    return out;
  });
}

std::string kv_verify_text(std::string_view verify) {
  return rendered(verify, [&](const json::value& v) {
    std::string out = fmt::format("{} blocks in memory and {} on disk read ({}): {} bad\n",
                                  number(v, "host_blocks"), number(v, "disk_blocks"),
                                  bytes(v, "bytes"), number(v, "bad_blocks"));
    for (const json::value& bad : v.at("bad").as_array())
      out += "  " + json::serialize(bad) + "\n";
    return out;
  });
}

std::pair<std::size_t, std::size_t> kv_verify_progress(std::string_view part) {
  boost::system::error_code error;
  const json::value parsed = json::parse(part, error);
  if (error || !parsed.is_object()) return {0, 0};
  const auto count = [&](std::string_view key) {
    return static_cast<std::size_t>(number(parsed, key));
  };
  const std::size_t done = count("host_blocks") + count("disk_blocks") + count("gone_meanwhile");
  return {done, done + count("host_blocks_left") + count("disk_blocks_left")};
}

}  // namespace penstock
