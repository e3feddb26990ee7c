// The command line, the configuration file and what is made from their table.
#include <cstdlib>
#include <set>

#include "app/command_line.h"
#include "app/config_file.h"
#include "app/data_plane.h"
#include "app/help.h"
#include "app/option_table.h"
#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

Environment environment() {
  Environment e;
  e.home = "/home/ann";
  e.working_dir = "/srv";
  e.executable = "/opt/bin/penstock";
  e.machine.cores = 16;
  e.machine.memory_available = Bytes(std::int64_t{16} << 30);
  return e;
}

Result<CommandLine> parse(std::vector<std::string> arguments) {
  return parse_command_line(std::move(arguments), environment());
}

// Arguments of serve, with a model given.
Result<Options> serve(std::vector<std::string> flags) {
  std::vector<std::string> arguments = {"serve", "--model", "nano=/m"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  auto line = parse(std::move(arguments));
  if (!line) return std::unexpected(line.error());
  return line->options;
}

Result<Options> from_yaml(std::string_view text) {
  Options options = default_options();
  if (auto status = apply_config(text, "/etc/p.yaml", environment(), options); !status)
    return std::unexpected(status.error());
  return options;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void check_fresh(const std::string& path, const std::string& content) {
  if (std::getenv("UPDATE") != nullptr) REQUIRE(write_file_atomically(path, content));
  CHECK_MESSAGE(read_file(path, Bytes(1 << 20)) == content,
                path << ": run the tests with UPDATE=1 and review the difference");
}

}  // namespace

TEST_CASE("docs/cli.md and docs/config.md are fresh") {
  check_fresh("docs/cli.md", cli_markdown());
  check_fresh("docs/config.md", config_markdown());
}

TEST_CASE("rows: flags are unique within a command, keys everywhere, defaults parse") {
  std::set<std::string_view> keys;
  for (const auto& row : option_table()) {
    CHECK_MESSAGE((row.key.empty() || keys.insert(row.key).second), row.key);
    CHECK_MESSAGE(!row.summary.ends_with('.'), row.flag);
    CHECK_MESSAGE((row.detail.empty() || row.detail.ends_with('.')), row.flag);
    CHECK(row.in != 0);
  }
  for (const auto& command : command_table()) {
    std::set<std::string_view> flags;
    for (const auto* row : flags_of(command.id))
      CHECK_MESSAGE(flags.insert(row->flag).second, row->flag);
    CHECK(has(command_help(command), command.summary));
    CHECK(has(overview_text(), command.summary));
  }
  CHECK(default_options().port == 8080);
}

TEST_CASE("defaults, automatic values and flags") {
  const auto options = serve({});
  REQUIRE(options);
  CHECK(options->host == "127.0.0.1");
  CHECK(options->port == 8080);
  CHECK(options->data_dir == "/home/ann/.local/share/penstock");
  CHECK(options->worker_socket == "/home/ann/.local/share/penstock/run/worker-0.sock");
  CHECK(options->pools == "prefill=1,decode=1");
  CHECK(options->kv_memory == Bytes(std::int64_t{2} << 30));
  CHECK(options->engine_threads == 16);
  CHECK(options->gateway_threads == 2);
  CHECK(options->request_time_max == std::chrono::minutes(10));

  const auto set =
      serve({"--port=0", "--kv-memory", "1.5GiB", "--model", "b=models/b", "--alias", "x=b",
             "--data-dir", "~/d", "--json", "--kv-dtype", "f32", "--drain-timeout", "0s"});
  REQUIRE(set);
  CHECK(set->port == 0);
  CHECK(set->kv_memory == Bytes(std::int64_t{1536} << 20));
  CHECK(set->models == std::vector<Assignment>{{"nano", "/m"}, {"b", "/srv/models/b"}});
  CHECK(set->data_dir == "/home/ann/d");
  CHECK(set->json);
}

TEST_CASE("what is wrong with a command line is said with the remedy") {
  struct Case {
    std::vector<std::string> arguments;
    std::string_view message;
  };
  const std::string m = "nano=/m";
  for (const Case& c : {
           Case{{"serv"}, "unknown command \"serv\"; did you mean serve?"},
           Case{{"frobnicate"}, "unknown command \"frobnicate\". `penstock` lists the commands."},
           Case{{"help", "sreve"}, "did you mean serve?"},
           Case{{"serve", "--prot", "1"}, "unknown flag --prot; did you mean --port?"},
           Case{{"serve", "--prot=1"}, "did you mean --port?"},
           Case{{"serve", "--zzzzzzzz"}, "unknown flag --zzzzzzzz. See `penstock serve --help`."},
           Case{{"serve", "--port"}, "--port"},
           Case{{"serve", "extra"}, "unexpected argument \"extra\""},
           Case{{"serve", "--port", "http"}, "--port: expected a whole number, got \"http\""},
           Case{{"serve", "--port", "65536"}, "--port: must be 0 to 65535, not 65536"},
           Case{{"serve", "--port", "1", "--port", "2"}, "--port is given twice"},
           Case{{"serve", "--kv-memory", "lots"}, "--kv-memory: expected a size such as"},
           Case{{"serve", "--kv-memory", "1KiB"}, "must be 1MiB to "},
           Case{{"serve", "--request-timeout", "1"}, "expected a time such as"},
           Case{{"serve", "--kv-dtype", "fp8"}, "must be bf16 or f32, not \"fp8\""},
           Case{{"serve", "--engine", "vlm=http://x"}, "llamacpp; did you mean vllm?"},
           Case{{"serve", "--engine", "vllm"}, "say where it is, as in vllm=http://127.0.0.1:8000"},
           Case{{"serve", "--engine", "vllm=http://x,key"}, "\"key\" has no value"},
           Case{{"serve", "--engine", "vllm=http://x,role=both"}, "a role is prefill or decode"},
           Case{{"serve", "--engine", "vllm=http://x,role=decode"}, "there is no prefill engine"},
           Case{{"serve", "--engine", "llamacpp=http://x,role=decode"}, "leave out the role"},
           Case{{"serve", "--engine", "embedded", "--engine", "vllm=http://x"}, "served together"},
           Case{{"worker", "--engine", "vllm=http://x"}, "a worker runs an engine of this program"},
           Case{{"serve", "--model", "/dir"}, "--model: expected NAME=VALUE"},
           Case{{"serve", "--model", m, "--model", m}, "\"nano\" is given twice"},
           Case{{"serve", "--model", m, "--alias", "gpt=nanno"},
                "names the unknown model \"nanno\"; did you mean nano?"},
           Case{{"serve", "--model", m, "--alias", "nano=nano"}, "is also the name of a model"},
           Case{{"serve", "--model", m, "--chat-template", "nanno=x.jinja"},
                "a chat template is given for the unknown model"},
           Case{{"serve"}, "no model to serve"},
           Case{{"serve", "--model", m, "--host", "0.0.0.0"}, "refusing to listen on 0.0.0.0"},
           Case{{"serve", "--model", m, "--host", "::"}, "refusing to listen on ::"},
           Case{{"serve", "--model", m, "--host", "example.org"}, "is not an IP address"},
           Case{{"serve", "--model", m, "--tls-cert", "c"},
                "--tls-cert is given without --tls-key"},
           Case{{"serve", "--model", m, "--data-dir", "/" + std::string(120, 'x')},
                "choose a shorter --data-dir"},
           Case{{"serve", "--config", "/no/such.yaml"}, "cannot open /no/such.yaml"},
           Case{{"bench", "engine", "tokenizer"}, "unexpected argument \"tokenizer\""},
       }) {
    const auto line = parse(c.arguments);
    REQUIRE(!line);
    CHECK_MESSAGE(has(line.error().message, c.message), line.error().message);
  }
}

TEST_CASE("other hosts are served with keys, and every loopback without") {
  CHECK(serve({"--host", "0.0.0.0", "--api-key-file", "keys"}));
  for (const auto* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"})
    CHECK_MESSAGE(serve({"--host", host}), host);
  CHECK(serve({"--host", "localhost"})->host == "127.0.0.1");
}

TEST_CASE("help and version need nothing else to be right") {
  CHECK(parse({}).value().help);
  CHECK(parse({"--help"}).value().help);
  CHECK(parse({"--version"}).value().version);
  const auto line = parse({"serve", "--host", "0.0.0.0", "--help"});
  REQUIRE(line);
  CHECK(line->help);
  CHECK(line->command->name == "serve");
  CHECK(parse({"help", "chat"}).value().command->name == "chat");
}

TEST_CASE("limits of the handoff have names, and rely on each other") {
  const auto handoff = [](std::vector<std::string> limits) {
    std::vector<std::string> arguments{"worker", "--model", "nano=/m"};
    for (auto& limit : limits) {
      arguments.push_back("--handoff-limit");
      arguments.push_back(std::move(limit));
    }
    return parse(std::move(arguments));
  };
  const auto line = handoff({"reader.whole=60s", "owner.handoffs_max=5", "pulls_max=7"});
  REQUIRE(line);
  const auto options = handoff_options(line->options).value();
  CHECK(options.reader.whole == std::chrono::seconds(60));
  CHECK(options.owner.handoffs_max == 5);
  CHECK(options.pulls_max == 7);
  CHECK(options.owner.lease == std::chrono::seconds(10));
  struct Case {
    std::string limit;
    std::string error;
  };
  for (const auto& [limit, error] :
       {Case{"reader.whol=60s", "\"reader.whol\" is no limit; did you mean reader.whole?"},
        Case{"reader.whole=60", "expected a time"}, Case{"pulls_max=0", "from 1"},
        Case{"reader.silent=1s", "two times owner.heartbeat"},
        Case{"reader.attach=4s", "longer than owner.parked"},
        Case{"owner.blocks_held_percent_max=101", "at most 100"}}) {
    const auto bad = handoff({limit});
    REQUIRE_MESSAGE(!bad, limit);
    CHECK_MESSAGE(bad.error().message.find(error) != std::string::npos, bad.error().message);
  }
}

TEST_CASE("words of chat, and -- before words that look like flags") {
  const auto line = parse({"chat", "What", "is", "--temperature", "0", "17?"});
  REQUIRE(line);
  CHECK(line->options.words == std::vector<std::string>{"What", "is", "17?"});
  CHECK(line->options.temperature == 0);
  CHECK(parse({"chat", "--", "--not-a-flag"}).value().options.words ==
        std::vector<std::string>{"--not-a-flag"});
}

TEST_CASE("a configuration file") {
  const auto options = from_yaml(
      "listen:\n  port: 9000\n  tls_cert: cert.pem\n"
      "models:\n  nano: models/nano\n  big: ~/big\n"
      "aliases: {gpt: nano}\n"
      "engine:\n  kv_memory: 512MiB\n"
      "limits:\n  # all defaults\n"
      "log:\n  format: json\n");
  REQUIRE_MESSAGE(options, options.error().message);
  CHECK(options->port == 9000);
  CHECK(options->tls_cert == "/etc/cert.pem");
  CHECK(options->models ==
        std::vector<Assignment>{{"nano", "/etc/models/nano"}, {"big", "/home/ann/big"}});
  CHECK(options->kv_memory == Bytes(512 << 20));
  CHECK(from_yaml("").has_value());
  CHECK(from_yaml("# nothing\n").has_value());
}

TEST_CASE("a bad configuration file names the line, the key and the nearest right one") {
  struct Case {
    std::string text;
    std::string_view message;
  };
  for (const Case& c : {
           Case{"listen:\n  prot: 1\n",
                "/etc/p.yaml:2: listen.prot: unknown key; did you mean listen.port?"},
           Case{"port: 1\n", "/etc/p.yaml:1: port: unknown key; did you mean listen.port?"},
           Case{"zzzzzzzz: 1\n", "unknown key; `penstock config explain` lists the keys"},
           Case{"\nlisten:\n  port: http\n",
                "/etc/p.yaml:3: listen.port: expected a whole number, got \"http\""},
           Case{"listen:\n  port: [1]\n",
                "/etc/p.yaml:2: listen.port: expected number, got a list"},
           Case{"listen:\n  port:\n", "listen.port: expected number, got nothing"},
           Case{"listen: 8080\n", "/etc/p.yaml:1: listen: expected a map of keys, got a value"},
           Case{"listen:\n  port: 1\n  port: 2\n", "/etc/p.yaml:3: listen.port: is given twice"},
           Case{"models: nano\n", "models: expected a map from names to paths, got a value"},
           Case{"models:\n  nano: [x]\n", "models: expected a map from names to paths"},
           Case{"models:\n  a: x\n  a: y\n", "/etc/p.yaml:3: models: \"a\" is given twice"},
           Case{"- 1\n", "expected a map of keys, got a list"},
           Case{"just words\n", "expected a map of keys, got a value"},
           Case{"listen: {port: 1\n", "not valid YAML"},
           Case{"a: b: c\n", "/etc/p.yaml:1: not valid YAML"},
           Case{"{1: 2}: 3\n", "a key must be a word"},
           Case{"log:\n  level: loud\n", "must be debug or info or warning or error"},
           Case{std::string(2000, '[') + "\n", "not valid YAML"},
       }) {
    const auto options = from_yaml(c.text);
    REQUIRE_MESSAGE(!options, c.text);
    CHECK_MESSAGE(has(options.error().message, c.message), options.error().message);
    CHECK(options.error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("flags override the file, and lists as a whole") {
  const auto folder = TemporaryDirectory::make("penstock-config").value();
  const std::string path = folder.path() + "/p.yaml";
  REQUIRE(write_file_atomically(path, "listen:\n  port: 9000\nmodels: {a: /a, b: /b}\n"));
  const auto file_only = parse({"serve", "--config", path});
  REQUIRE(file_only);
  CHECK(file_only->options.port == 9000);
  CHECK(file_only->options.models.size() == 2);
  const auto both = parse({"serve", "--config", path, "--port", "1", "--model", "c=/c"});
  REQUIRE(both);
  CHECK(both->options.port == 1);
  CHECK(both->options.models == std::vector<Assignment>{{"c", "/c"}});
}

TEST_CASE("the effective configuration reads back to the same values") {
  auto options = serve({"--alias", "gpt=nano", "--kv-memory", "300MiB", "--log-format", "json",
                        "--data-dir", "/d/\"quoted\" \xC3\xA9", "--port", "0"});
  REQUIRE(options);
  Options again = default_options();
  REQUIRE(apply_config(effective_config(*options), "/x/config.json", environment(), again));
  for (const auto& row : option_table()) {
    if (!row.key.empty()) CHECK(option_text(again, row) == option_text(*options, row));
  }
}

TEST_CASE("explain describes a key or a flag and suggests for a typo") {
  const auto options = serve({}).value();
  const auto text = explain_key("engine.kv_memory", options);
  REQUIRE(text);
  for (const auto* part :
       {"Memory for keys and values", "default  auto", "now      2GiB", "--kv-memory SIZE"})
    CHECK_MESSAGE(has(*text, part), *text);
  CHECK(explain_key("--port", options));
  const auto missing = explain_key("engine.kvmemory", options);
  REQUIRE(!missing);
  CHECK(has(missing.error().message, "did you mean engine.kv_memory?"));
}

TEST_CASE("the data folder without a home") {
  Environment e = environment();
  e.home.clear();
  Options options;
  resolve_automatic(options, e);
  CHECK(options.data_dir == "/srv/penstock-data");
  e.data_home = "/data";
  options = {};
  resolve_automatic(options, e);
  CHECK(options.data_dir == "/data/penstock");
}

}  // namespace penstock
