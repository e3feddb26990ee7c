// Options: the effective configuration of one penstock process, as plain values.
//
// Every field is bound to one row of the option table (app/option_table.h), which gives it its
// flag, its key in the configuration file, its default and its description. parse_command_line()
// (app/command_line.h) fills it: defaults, then the file, then the flags, then what is `auto` from
// the machine. The supervisor writes the result to DATA_DIR/run/config.json and its children read
// that through the same loader, so all processes of one service see the same values.
//
// Invariants (after parsing): values are in the table's ranges; automatic values are resolved (no 0
// stands for "auto"); tls_cert and tls_key are both set or both empty; host is a loopback address
// unless api_key_file is set; aliases name a model and no two names are equal.
// Units: Bytes, Duration. Concurrency: a value; share it read-only.
// Source: design.md section 10.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

namespace penstock {

// NAME=VALUE, as in --model nano=models/nano.
struct Assignment {
  std::string name;
  std::string value;

  bool operator==(const Assignment&) const = default;
};

struct Options {
  // What was asked for.
  std::string command;             // "serve", "worker", ...
  std::vector<std::string> words;  // arguments that are not flags: `bench NAME`, `chat QUESTION`
  std::string config_file;
  bool json = false;

  // Where it listens, and who may come in.
  std::string host;
  std::uint32_t port = 0;  // 0 picks a free one
  std::string tls_cert;
  std::string tls_key;
  std::string api_key_file;
  std::string data_dir;

  // What is served.
  std::string engine;                      // "embedded" or "scripted"
  std::string script;                      // file, of the scripted engine
  std::vector<Assignment> models;          // name -> checkpoint folder
  std::vector<Assignment> aliases;         // alias -> model name
  std::vector<Assignment> chat_templates;  // model name -> file

  // The gateway and its limits.
  std::uint32_t gateway_threads = 0;
  std::uint32_t connections_max = 0;  // per gateway
  std::uint32_t in_flight_max = 0;    // requests accepted and not answered, per gateway
  std::uint32_t running_max = 0;      // of them, given to engines
  std::uint32_t queue_max = 0;        // and waiting for one
  std::uint32_t tenant_queue_max = 0;
  Duration queue_time_max{};
  Bytes request_body_max;
  Bytes body_memory_max;  // all request bodies together, per gateway
  Bytes request_headers_max;
  Duration responses_retention{};  // of the Responses API; 0: nothing is stored
  Bytes responses_disk_max;
  Duration request_time_max{};     // from the request's head to the last byte of the answer
  Duration idle_timeout{};         // a connection without a request, or a request that stops coming
  Duration write_timeout{};        // a client that reads nothing
  Duration keep_alive_interval{};  // comments in a silent stream
  Duration worker_wait_max{};      // for a worker to come back, when there is none
  std::uint32_t moves_max = 0;     // placements after the first, per request
  Duration drain_timeout{};        // how long running requests may finish after SIGTERM

  // Pools of workers, and where requests go.
  std::string pools;                // "prefill=1,decode=1"
  std::vector<Assignment> workers;  // name -> address; empty: those of the pools
  Duration local_prefill_max{};     // prompts this short are computed where they are decoded
  Bytes bandwidth_near;             // of KV, per second: within a zone,
  Bytes bandwidth_far;              // and between zones
  std::string prefill_policy;       // which rank of a kind: core/routing's names
  std::string decode_policy;
  std::vector<Assignment> engine_profiles;  // engine -> profile that its costs start from
  Duration prefill_backlog{};               // beyond it new prompts wait in the gateway
  Duration first_token_target{};            // of those that wait for an engine; 0: by deadline
  Duration step_time_max{};                 // of decode steps, predicted; 0: no limit

  // The worker.
  std::string worker_name;
  std::string role;         // "prefill", "decode" or "mixed"
  std::uint32_t ranks = 0;  // engines per model, each with its own KV pool and batch
  std::string zone;
  std::string step_group;
  std::string transport;     // "shm", "tcp", "ucx" or an address
  Duration handoff_lease{};  // KV of a prefill is kept for its reader this long after its last sign
  std::vector<Assignment> handoff_limits;  // name as in docs/protocol/handoff.md -> value
  Duration stall_time{};                   // of one engine step, then the worker ends itself
  std::uint32_t engine_threads = 0;
  Bytes kv_memory;
  std::string kv_dtype;                // "bf16" or "f32"
  std::uint32_t max_batch_tokens = 0;  // tokens one engine step computes at most
  std::uint32_t max_sequences = 0;     // sequences running at once

  // The KV cache.
  std::string kv_cache;  // "on" or "off"
  Bytes kv_host_memory;  // the arena
  std::string kv_disk;   // "on" or "off"
  Bytes kv_disk_size;
  std::string kv_dir;                  // segments of the disk tier
  std::string kv_scope;                // "tenant", "user" or "deployment": who may share
  double kv_tenant_share = 0;          // of a tier, for one tenant when there are others
  std::vector<Assignment> kv_classes;  // class -> time since last use that it is kept
  Duration kv_disk_time_max{};         // of one disk operation, then the tier is suspended
  Duration kv_fetch_base{};            // how long a request waits for its blocks: at least,
  Duration kv_fetch_per_1k{};          // and in addition per 1,024 tokens
  std::string kv_secret_file;
  std::string kv_encryption_key_file;  // encryption of the disk tier; empty: none
  std::string kv_listen;               // HOST:PORT for other hosts' daemons; empty: none
  std::vector<Assignment> kv_peers;    // name -> HOST:PORT of a daemon to ask
  std::string cluster_store;           // KIND:REST of the store that hosts share; empty: none
  std::string cluster_classes;         // "agent,chat" or "all": written through to it
  Duration cluster_fetch_limit{};      // of one read or look-up there
  Duration cluster_slice{};            // of the manifests its expiry works from
  Bytes cluster_size;                  // target of what it holds; 0: what it can hold
  std::string kv_scope_filter;         // kv export: only scopes that contain it
  bool dry_run = false;                // kv gc: say what would go
  std::string kv_tier;                 // kv verify: "host", "disk" or "all"
  bool wait = false;                   // kv warm: until it can be hit, in memory and on disk

  // Experts: where they run, planned live by the gateway or from a file.
  Duration expert_plan_interval{};       // 0: never
  std::uint32_t expert_ranks = 0;        // GPUs; of the embedded engine, logical ranks
  std::uint32_t expert_slots = 0;        // of each; 0: as many as the experts need, and a spare one
  std::uint32_t expert_groups = 0;       // of experts that stay on one node
  std::uint32_t expert_nodes = 0;        // hosts of the ranks
  std::uint32_t expert_layer_moves = 0;  // copies that a round may move in a layer,
  std::uint32_t expert_round_moves = 0;  // and in all
  std::uint32_t record_seconds = 0;      // experts record
  Duration record_window{};              // of loads
  bool baseline = false;                 // experts plan: the public EPLB
  bool weighted = false;                 // experts plan: unequal shares of traffic
  std::string map_format;                // experts plan: "maps" or "sglang"
  std::string out;                       // experts, profile: file to write; empty: stdout

  // Between our processes.
  std::string worker_socket;   // Unix socket the worker listens on
  std::string worker_listen;   // HOST:PORT instead; empty: the socket
  std::string kv_socket;       // Unix socket of the KV daemon
  std::uint32_t ready_fd = 0;  // where a child reports that it is ready (app/ready.h); 0 = nowhere

  // Logs.
  std::string log_level;
  std::string log_format;  // "text" or "json"
  std::string access_log;  // file; empty = stderr

  // Clients: chat, eval, doctor.
  std::string url;         // empty: eval and doctor start or look for their own
  std::string ca_file;     // trusted certificates, PEM; empty: the system's
  std::string chat_model;  // name sent in requests; empty = the first that the server lists
  std::string system_prompt;
  std::uint32_t max_tokens = 0;  // 0 = the server decides
  double temperature = 0;
  bool verbose = false;

  // Evaluation and benchmarks.
  std::string suite;
  std::string suite_dir;
  std::uint32_t concurrency = 0;
  std::uint32_t items_max = 0;  // per skill; 0 = all
  bool quick = false;
  std::string reference_dir;  // see bench/bench.h
  std::string bench_tier;     // bench kv: "all", or only that tier

  // The simulator.
  std::string sim_suite;  // "balance", or empty
  bool sim_quick = false;
  std::string sim_profile;      // file; empty: the one that comes with the program
  std::uint32_t sim_ranks = 0;  // of each pool; 0: the profile's
  double sim_scale_d = 1;
  double sim_scale_f = 1;
  std::string sim_workload;
  double sim_rate = 0;  // requests a second of one copy
  double sim_load = 0;  // copies
  bool sim_find_load = false;
  double sim_tolerance = 0;
  std::string sim_policy;
  std::string sim_decode_policy;  // empty: the same
  std::string sim_queue;          // "on" or "off"
  std::uint32_t sim_gateways = 0;
  Duration sim_report_lag{};
  double sim_report_loss = 0;
  Duration sim_event_lag{};
  double sim_event_loss = 0;
  std::string sim_cache;  // "cluster" or "engine"
  std::uint32_t sim_cache_blocks = 0;
  Duration sim_cache_ttl{};
  std::uint32_t sim_host_blocks = 0;  // tiers beside it; 0: none
  Duration sim_host_ttl{};
  std::uint32_t sim_disk_blocks = 0;
  Duration sim_disk_ttl{};
  std::uint32_t sim_zones = 0;
  std::vector<Assignment> sim_changes;
  Duration sim_seconds{};  // negative: by what is run
  Duration sim_warmup{};
  std::uint32_t sim_seed = 0;
  std::string sim_html;
  Duration sim_first_token{};  // the service level
  double sim_first_token_ratio = 0;
  Duration sim_token_gap{};
  double sim_missed_share = 0;
  std::uint32_t sim_jobs = 0;           // threads of a suite; 0: all cores
  std::string sim_only;                 // parts of a suite, by commas; empty: all
  std::string sim_runs;                 // file of what a suite has run; empty: none
  std::vector<Assignment> sim_tenants;  // NAME=SHARE[:WEIGHT[:PRIORITY]]
  std::string sim_loads;                // "own" or "spread"

  // The planner of deployments, which takes the simulator's options too.
  double plan_gpu_price = 0;  // an hour
  std::uint32_t plan_experts = 0;
  double plan_expert_skew = 0;
  std::string plan_expert_loads;  // file; empty: made up
};

}  // namespace penstock
