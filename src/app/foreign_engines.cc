#include "app/foreign_engines.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <algorithm>
#include <map>

#include "app/suggest.h"
#include "app/values.h"
#include "io/files/files.h"
#include "io/http/client.h"
#include "io/zmq/zmq_socket.h"

namespace penstock {
namespace {

using enum ErrorCode;

constexpr std::string_view kFileWord = "file=";

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(at), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::unexpected<Error> bad(std::string_view word, std::string_view why) {
  return fail(kInvalidArgument, fmt::format("engine \"{}\": {}", word, why), "engine.kind");
}

// Fails loudly where caches would otherwise look empty for ever.
Status check_events(std::string_view word, const ForeignEngine& engine) {
  if (engine.kv_events.empty()) {
    if (engine.kv_replay.empty() && engine.kv_topic.empty()) return {};
    return bad(word, "kv-replay and kv-topic go with kv-events=tcp://HOST:PORT");
  }
  if (!dialects::dialect(engine.kind).kv_events)
    return bad(word,
               "this kind of engine publishes no KV events: leave out kv-events; prompts are "
               "then found by what was sent there");
  for (const std::string& endpoint : {engine.kv_events, engine.kv_replay}) {
    if (endpoint.empty()) continue;
    if (auto status = zmq::check_endpoint(endpoint); !status)
      return bad(word, status.error().message);
  }
  return {};
}

Result<ForeignEngine> parse_engine(std::string_view word) {
  const auto equals = word.find('=');
  const auto kind = dialects::engine_kind(word.substr(0, equals));
  if (!kind) {
    std::vector<std::string_view> names = {"embedded", "scripted"};
    for (const auto& dialect : dialects::dialects())
      names.push_back(dialect.name);
    return bad(word, fmt::format("there are {}{}", fmt::join(names, ", "),
                                 did_you_mean(word.substr(0, equals), names)));
  }
  if (equals == std::string_view::npos)
    return bad(word, fmt::format("say where it is, as in {}=http://127.0.0.1:8000", word));
  ForeignEngine engine;
  engine.kind = *kind;
  const std::map<std::string_view, std::string*, std::less<>> texts = {
      {"key-file", &engine.key_file},
      {"name", &engine.name},
      {"bootstrap-host", &engine.bootstrap_host},
      {"kv-events", &engine.kv_events},
      {"kv-replay", &engine.kv_replay},
      {"kv-topic", &engine.kv_topic}};
  const auto parts = split(word.substr(equals + 1), ',');
  if (parts.empty()) return bad(word, "the address is missing");
  engine.url = parts.front();
  const auto url = http::parse_url(engine.url);
  if (!url) return bad(word, url.error().message);
  engine.bootstrap_host = url->host;
  for (const std::string_view part : std::span(parts).subspan(1)) {
    const auto mark = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, mark);
    const std::string_view value = part.substr(std::min(mark + 1, part.size()));
    if (value.empty()) return bad(word, fmt::format("\"{}\" has no value", part));
    if (const auto text = texts.find(name); text != texts.end()) {
      *text->second = value;
    } else if (name == "role" && value == "prefill") {
      engine.role = foreign::EngineRole::kPrefill;
    } else if (name == "role" && value == "decode") {
      engine.role = foreign::EngineRole::kDecode;
    } else if (name == "role" && value == "encode") {
      if (engine.kind != dialects::EngineKind::kVllm)
        return bad(word,
                   "only vLLM has its media encoded by this gateway; SGLang's servers talk to "
                   "encoders themselves (--encoder-urls): leave this one out");
      engine.role = foreign::EngineRole::kEncode;
    } else if (name == "bootstrap-port") {
      TRY(const std::int64_t port, parse_count(value));
      if (port < 1 || port > 65535) return bad(word, "bootstrap-port is 1 to 65535");
      engine.bootstrap_port = static_cast<std::uint16_t>(port);
    } else if (name == "connector" && (value == "nixl" || value == "mooncake")) {
      if (engine.kind != dialects::EngineKind::kVllm)
        return bad(word, "a connector is vLLM's: leave it out");
      engine.mooncake = value == "mooncake";
    } else if (name == "connector") {
      return bad(word, "a connector is nixl, which it is without this, or mooncake");
    } else if (name == "role") {
      return bad(
          word,
          "a role is prefill or decode (of vLLM also encode); without one an engine does all");
    } else {
      return bad(word,
                 fmt::format("\"{}\" is not known; there are key-file, name, role, connector, "
                             "bootstrap-host, bootstrap-port, kv-events, kv-replay and "
                             "kv-topic",
                             name));
    }
  }
  if (engine.mooncake && engine.role == foreign::EngineRole::kMixed)
    return bad(word, "a connector goes with role=prefill or role=decode");
  foreign::EngineConfig at;
  at.bootstrap_host = engine.bootstrap_host;
  at.bootstrap_port = engine.bootstrap_port;
  if (!http::parse_url(at.bootstrap_url()))
    return bad(word, fmt::format("\"{}\" is no host", engine.bootstrap_host));
  TRY_STATUS(check_events(word, engine));
  return engine;
}

// Work is shared by engines of one kind that can, and takes both roles.
Status check_role(const ForeignEngine& engine, const std::vector<ForeignEngine>& all) {
  if (engine.role == foreign::EngineRole::kMixed) return {};
  const auto& dialect = dialects::dialect(engine.kind);
  if (engine.role == foreign::EngineRole::kEncode) {
    const bool serves = std::ranges::any_of(all, [&](const ForeignEngine& each) {
      return each.kind == engine.kind && each.role != foreign::EngineRole::kEncode;
    });
    if (serves) return {};
    return bad(engine.name,
               fmt::format("there is no engine of {} beside it that answers", dialect.name));
  }
  if (dialect.pd == dialects::PdProtocol::kNone)
    return bad(engine.name,
               fmt::format("{} does prompts and answers itself: leave out the role", dialect.name));
  const auto other = engine.role == foreign::EngineRole::kPrefill ? foreign::EngineRole::kDecode
                                                                  : foreign::EngineRole::kPrefill;
  const bool paired = std::ranges::any_of(all, [&](const ForeignEngine& each) {
    return each.kind == engine.kind && each.role == other && each.mooncake == engine.mooncake;
  });
  if (paired) return {};
  return bad(engine.name, fmt::format("there is no {} engine of {}{} beside it",
                                      other == foreign::EngineRole::kPrefill ? "prefill" : "decode",
                                      dialect.name, engine.mooncake ? " with Mooncake" : ""));
}

}  // namespace

Result<std::vector<ForeignEngine>> foreign_engines(const Options& options) {
  std::vector<ForeignEngine> engines;
  auto words = split(options.engine, ' ');
  if (words.size() == 1 && (words[0] == "embedded" || words[0] == "scripted")) return engines;
  const std::string file = engines_file(options);
  std::string lines;
  if (!file.empty()) {
    std::erase_if(words, [](std::string_view word) { return word.starts_with(kFileWord); });
    TRY(lines, read_file(file, kEnginesFileMax));
  }
  const std::size_t fixed = words.size();
  for (const std::string_view line : split(lines, '\n')) {
    for (const std::string_view word : split(line.substr(0, line.find('#')), ' '))
      words.push_back(word.substr(0, word.find('\r')));
  }
  std::erase(words, "");
  if (!file.empty() && words.empty()) return engines;
  if (words.empty()) return bad("", "which engine? `embedded` is the one of this program");
  for (const std::string_view word : words) {
    if (word == "embedded" || word == "scripted")
      return bad(word, "it can't be served together with engines of others by one gateway yet");
    TRY(ForeignEngine engine, parse_engine(word));
    // Numbers would move when a line goes.
    if (engine.name.empty() && engines.size() >= fixed)
      engine.name = fmt::format("{}-{}", dialects::dialect(engine.kind).name,
                                engine.url.substr(engine.url.find("//") + 2));
    if (engine.name.empty())
      engine.name = fmt::format("{}-{}", dialects::dialect(engine.kind).name, engines.size());
    if (std::ranges::find(engines, engine.name, &ForeignEngine::name) != engines.end())
      return bad(word, fmt::format("there is another engine with the name {}", engine.name));
    engines.push_back(std::move(engine));
  }
  for (const ForeignEngine& engine : engines)
    TRY_STATUS(check_role(engine, engines));
  return engines;
}

std::string engines_file(const Options& options) {
  for (const std::string_view word : split(options.engine, ' ')) {
    if (word.starts_with(kFileWord)) return std::string(word.substr(kFileWord.size()));
  }
  return {};
}

bool serves_foreign(const Options& options) {
  if (!engines_file(options).empty()) return true;
  const auto engines = foreign_engines(options);
  return engines && !engines->empty();
}

Result<std::string> load_engine_key(const std::string& path) {
  struct stat file{};
  if (::stat(path.c_str(), &file) == 0 && (file.st_mode & 077) != 0)
    return fail(kPermissionDenied, fmt::format("{} can be read by others; chmod 600 it", path),
                "engine.kind");
  TRY(std::string text, read_file(path, Bytes(64 << 10)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  const bool printable = std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
  if (text.empty() || !printable)
    return fail(kInvalidArgument, fmt::format("{} does not hold one key on one line", path),
                "engine.kind");
  return text;
}

Status check_engine_keys(const Options& options) {
  TRY(const auto engines, foreign_engines(options));
  for (const ForeignEngine& engine : engines) {
    if (engine.key_file.empty()) continue;
    if (auto key = load_engine_key(engine.key_file); !key)
      return std::unexpected(std::move(key).error().within("engine " + engine.name));
  }
  return {};
}

}  // namespace penstock
