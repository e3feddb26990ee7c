// The rows of the option table (app/option_table.h), in the order of help and docs.
#include <array>

#include "app/option_table.h"

namespace penstock {
namespace {

constexpr double kMs = 1e6;
constexpr double kHour = 3600e9;
constexpr double kKiB = 1024;
constexpr double kMiB = 1024 * 1024;
constexpr double kTiB = kMiB * kMiB;

using enum Command;
using enum OptionForm;
constexpr Commands kBoth = commands(kServe, kGateway, kWorker, kDoctor, kConfig);
constexpr Commands kKvSide = commands(kServe, kKvd, kDoctor, kConfig);
constexpr Commands kGatewaySide = commands(kServe, kGateway, kDoctor, kConfig);
constexpr Commands kWorkerSide = commands(kServe, kWorker, kDoctor, kConfig, kEval);
constexpr Commands kEngineUsers = kWorkerSide | commands(kProfile);
constexpr Commands kModelUsers =
    commands(kServe, kGateway, kWorker, kDoctor, kConfig, kEval, kBench);
constexpr Commands kClients = commands(kChat, kEval);
constexpr Commands kUrlUsers = kClients | commands(kKv);
using O = Options;

constexpr std::array kTable = {
    OptionInfo{"config", "", &O::config_file, kBoth | commands(kEval, kKvd, kKv, kExperts), "FILE",
               "", 0, 0, "", kPath, "Read the configuration from a YAML file",
               "Flags override the file. `penstock config explain` lists its keys."},
    OptionInfo{"json", "", &O::json,
               commands(kServe, kDoctor, kEval, kBench, kConfig, kKv, kExplain, kExperts, kProfile),
               "", "false", 0, 0, "", kPlain, "Print data as JSON", ""},

    OptionInfo{"host", "listen.host", &O::host, kGatewaySide, "ADDRESS", "127.0.0.1", 0, 0, "",
               kPlain, "Address to listen on",
               "Anything but a loopback address needs --api-key-file. 0.0.0.0 and :: mean all "
               "interfaces."},
    OptionInfo{"port", "listen.port", &O::port, kGatewaySide, "N", "8080", 0, 65535, "", kPlain,
               "Port to listen on; 0 picks a free one", ""},
    OptionInfo{"tls-cert", "listen.tls_cert", &O::tls_cert, kGatewaySide, "FILE", "", 0, 0, "",
               kPath, "Certificate chain (PEM); with --tls-key, serves HTTPS", ""},
    OptionInfo{"tls-key", "listen.tls_key", &O::tls_key, kGatewaySide, "FILE", "", 0, 0, "", kPath,
               "Private key of the certificate (PEM)", "Only its owner may be able to read it."},
    OptionInfo{
        "api-key-file", "listen.api_keys", &O::api_key_file, kGatewaySide, "FILE", "", 0, 0, "",
        kPath, "Only answer clients that present a key of this file",
        "Lines of NAME KEY [class=CLASS] [priority=N] [weight=X]; the name goes into logs, the key "
        "is the client's bearer token, CLASS the cache class of its requests. When requests have "
        "to wait, a higher priority (-100 to 100, 0) goes first, and keys of one priority share "
        "the engines by weight (0.01 to 1000, 1). "
        "Only its owner may be able to read the file. Without it only loopback is served."},
    OptionInfo{
        "data-dir", "data.dir", &O::data_dir, kBoth | commands(kKvd, kKv, kExplain, kExperts),
        "DIR", "auto", 0, 0, "", kPath, "Folder for everything that is kept",
        "auto: $XDG_DATA_HOME/penstock, ~/.local/share/penstock, or ./penstock-data without a "
        "home. One service at a time uses a folder."},

    OptionInfo{"engine", "engine.kind", &O::engine, kBoth, "KIND", "embedded", 0, 0, "embedded",
               kPlain, "Engine that computes", "`embedded` is the CPU engine of this program."},
    OptionInfo{
        "model", "models", &O::models, kModelUsers | commands(kProfile), "NAME=DIR", "auto", 0, 0,
        "", kPath, "Serve the checkpoint folder DIR as NAME; repeatable",
        "A folder holds config.json, model.safetensors and tokenizer.json. auto: nano, from the "
        "models/nano folder that comes with the program."},
    OptionInfo{"alias", "aliases", &O::aliases, kBoth, "ALIAS=NAME", "", 0, 0, "", kPlain,
               "Also serve model NAME as ALIAS; repeatable", ""},
    OptionInfo{"pools", "pools", &O::pools, commands(kServe, kGateway, kDoctor, kConfig, kEval),
               "ROLE=N,...", "prefill=1,decode=1", 0, 0, "", kPlain,
               "Workers of this machine by role: prefill, decode, mixed",
               "Prompts are computed by prefill workers, and their KV pulled by decode workers, "
               "whose streams they so leave alone. mixed=1 is one worker that does both."},
    OptionInfo{"ranks", "worker.ranks", &O::ranks, kWorkerSide, "N", "1", 1, 64, "", kPlain,
               "Engines per model in each worker, each with its own KV and batch", ""},
    OptionInfo{"zone", "worker.zone", &O::zone, commands(kServe, kWorker, kDoctor, kConfig), "NAME",
               "", 0, 0, "", kPlain, "Where the worker is; transfers within a zone are cheap", ""},
    OptionInfo{"transport", "worker.transport", &O::transport,
               commands(kServe, kWorker, kDoctor, kConfig), "KIND|ADDRESS", "shm", 0, 0, "", kPlain,
               "How KV travels between workers: shm, tcp or ucx",
               "Or an address to listen at: shm:/path, tcp:HOST:PORT, ucx:HOST:PORT. shm is for "
               "workers of one machine; ucx for networks with RDMA."},
    OptionInfo{"handoff-lease", "worker.handoff_lease", &O::handoff_lease,
               commands(kServe, kWorker, kDoctor, kConfig), "TIME", "10s", 1e9, kHour, "", kPlain,
               "Computed KV is kept this long for a decode worker that gives no sign", ""},
    OptionInfo{
        "handoff-limit", "worker.handoff_limits", &O::handoff_limits,
        commands(kServe, kWorker, kDoctor, kConfig), "NAME=VALUE", "", 0, 0, "", kPlain,
        "Change a deadline or limit of the handoff of KV; repeatable",
        "Names, defaults and what they do: docs/protocol/handoff.md, \"Deadlines and limits\"; "
        "as in reader.whole=60s or owner.handoffs_max=200."},
    OptionInfo{"stall-time", "engine.stall_time", &O::stall_time,
               commands(kServe, kWorker, kDoctor, kConfig), "TIME", "60s", 1e9, kHour, "", kPlain,
               "A worker whose engine takes longer for one step ends, and is started again",
               "Its requests go on elsewhere. Far above the longest step of a busy machine."},
    OptionInfo{"local-prefill-time", "gateway.local_prefill_time", &O::local_prefill_max,
               kGatewaySide, "TIME", "20ms", 0, kHour, "", kPlain,
               "A prompt predicted to take no longer may be computed by the decode worker",
               "It is when that is faster than the way through the prefill pool: mostly long "
               "cached prefixes with a short rest. 0: never."},
    OptionInfo{"bandwidth-near", "gateway.bandwidth_near", &O::bandwidth_near, kGatewaySide, "SIZE",
               "2GiB", kMiB, kTiB, "", kPlain,
               "KV per second between workers of one zone, for predictions", ""},
    OptionInfo{"bandwidth-far", "gateway.bandwidth_far", &O::bandwidth_far, kGatewaySide, "SIZE",
               "512MiB", kMiB, kTiB, "", kPlain,
               "KV per second between workers of different zones, for predictions", ""},
    OptionInfo{"prefill-policy", "gateway.prefill_policy", &O::prefill_policy, kGatewaySide, "NAME",
               "prefill-balancer", 0, 0,
               "prefill-balancer|random|round-robin|least-requests|power-of-two|session-affinity|"
               "prefix-affinity|linear-cost",
               kPlain, "How the rank that computes a prompt is chosen",
               "The others are there to be compared with the balancer (docs/routing.md)."},
    OptionInfo{"decode-policy", "gateway.decode_policy", &O::decode_policy, kGatewaySide, "NAME",
               "decode-balancer", 0, 0,
               "decode-balancer|random|round-robin|least-requests|power-of-two|session-affinity|"
               "prefix-affinity|linear-cost",
               kPlain, "How the rank that generates the answer is chosen", ""},
    OptionInfo{"engine-profile", "gateway.engine_profiles", &O::engine_profiles, kGatewaySide,
               "ENGINE=FILE", "", 0, 0, "", kPath,
               "Start predicting what ENGINE costs from this profile; repeatable",
               "Only until enough was measured. `embedded` is the CPU engine of this program."},
    OptionInfo{"prefill-backlog", "gateway.prefill_backlog", &O::prefill_backlog, kGatewaySide,
               "TIME", "2s", kMs, kHour, "", kPlain,
               "Prompts that a rank is given ahead, in predicted time; further ones wait",
               "They wait in the gateway, where priorities and the tenants' shares count. A rank "
               "that has nothing to do takes any."},
    OptionInfo{"engine-threads", "engine.threads", &O::engine_threads, kEngineUsers, "N", "auto", 1,
               1024, "", kPlain, "Threads that compute, shared out to the workers and their ranks",
               "auto: one per core that this process may use. Every rank has one at least."},
    OptionInfo{"kv-memory", "engine.kv_memory", &O::kv_memory, kEngineUsers, "SIZE", "auto", kMiB,
               1024 * kTiB, "", kPlain,
               "Memory for keys and values, shared out evenly to workers, ranks and models",
               "auto: an eighth of the available memory, from 64MiB to 8GiB."},
    OptionInfo{"kv-dtype", "engine.kv_dtype", &O::kv_dtype, kEngineUsers, "TYPE", "bf16", 0, 0,
               "bf16|f32", kPlain, "Type in which keys and values are kept", ""},
    OptionInfo{
        "max-batch-tokens", "engine.max_batch_tokens", &O::max_batch_tokens, kEngineUsers, "N",
        "256", 1, 65536, "", kPlain, "Tokens that one engine step computes at most",
        "More makes long prompts faster and the pauses that they cause in other streams longer."},
    OptionInfo{"max-sequences", "engine.max_sequences", &O::max_sequences, kEngineUsers, "N", "256",
               1, 65536, "", kPlain, "Sequences that run at once; more wait", ""},

    OptionInfo{"gateway-threads", "gateway.threads", &O::gateway_threads, kGatewaySide, "N", "auto",
               1, 256, "", kPlain, "Threads that serve connections",
               "auto: one for every eight cores that this process may use, at least one."},
    OptionInfo{"keep-alive-interval", "gateway.keep_alive_interval", &O::keep_alive_interval,
               kGatewaySide, "TIME", "15s", 100 * kMs, kHour, "", kPlain,
               "A silent stream sends a comment this often, so that proxies keep it open", ""},
    OptionInfo{"max-connections", "limits.connections", &O::connections_max, kGatewaySide, "N",
               "4096", 1, 1'000'000, "", kPlain, "Open client connections at most",
               "Further ones are closed at once."},
    OptionInfo{"max-in-flight", "limits.in_flight", &O::in_flight_max, kGatewaySide, "N", "1024", 1,
               1'000'000, "", kPlain, "Requests accepted and not yet answered at most",
               "Further ones get 503 `overloaded` with Retry-After."},
    OptionInfo{"max-running", "limits.running", &O::running_max, kGatewaySide, "N", "1024", 1,
               1'000'000, "", kPlain, "Requests given to engines at most; further ones wait", ""},
    OptionInfo{"max-queue", "limits.queue", &O::queue_max, kGatewaySide, "N", "1024", 1, 1'000'000,
               "", kPlain, "Requests that wait for an engine at most",
               "A full queue takes one of higher priority in place of the newest of the lowest; "
               "others get 503 `overloaded` with Retry-After."},
    OptionInfo{"max-tenant-queue", "limits.tenant_queue", &O::tenant_queue_max, kGatewaySide, "N",
               "1024", 1, 1'000'000, "", kPlain,
               "Requests of one API key that wait for an engine at most",
               "Further ones get 429 `rate_limited` with Retry-After."},
    OptionInfo{"queue-timeout", "limits.queue_time", &O::queue_time_max, kGatewaySide, "TIME",
               "10min", kMs, 24 * kHour, "", kPlain, "Longest wait for an engine",
               "Then the answer is 503 `overloaded` with Retry-After."},
    OptionInfo{"max-request-body", "limits.request_body", &O::request_body_max, kGatewaySide,
               "SIZE", "32MiB", kKiB, 1024 * kMiB, "", kPlain, "Largest request body",
               "Larger ones get 413."},
    OptionInfo{"max-body-memory", "limits.body_memory", &O::body_memory_max, kGatewaySide, "SIZE",
               "512MiB", kMiB, 1024 * kTiB, "", kPlain, "Memory for all request bodies together",
               "Shared out evenly to the gateway threads, and at least one largest body for each. "
               "A body that does not fit gets 503 `overloaded` with Retry-After."},
    OptionInfo{"max-request-headers", "limits.request_headers", &O::request_headers_max,
               kGatewaySide, "SIZE", "64KiB", kKiB, kMiB, "", kPlain, "Largest request head",
               "Larger ones get 431."},
    OptionInfo{"request-timeout", "limits.request_time", &O::request_time_max, kGatewaySide, "TIME",
               "10min", 100 * kMs, 24 * kHour, "", kPlain,
               "Longest time for one request, answer included", ""},
    OptionInfo{"max-moves", "limits.moves", &O::moves_max, kGatewaySide, "N", "3", 1, 100, "",
               kPlain, "How often a request goes on elsewhere when its worker dies", ""},
    OptionInfo{"worker-wait", "limits.worker_wait", &O::worker_wait_max, kGatewaySide, "TIME",
               "10s", 0, kHour, "", kPlain,
               "A request waits this long for a worker when none is there", ""},
    OptionInfo{"idle-timeout", "limits.idle_time", &O::idle_timeout, kGatewaySide, "TIME", "75s",
               100 * kMs, kHour, "", kPlain,
               "A connection is closed after this long without a byte of a request", ""},
    OptionInfo{"write-timeout", "limits.write_time", &O::write_timeout, kGatewaySide, "TIME", "30s",
               100 * kMs, kHour, "", kPlain, "A client that reads nothing for this long is cut off",
               ""},
    OptionInfo{"drain-timeout", "limits.drain_time", &O::drain_timeout, kBoth, "TIME", "30s", 0,
               24 * kHour, "", kPlain, "After SIGTERM running requests may go on for this long",
               ""},

    OptionInfo{"kv-cache", "kv.cache", &O::kv_cache, kBoth, "on|off", "on", 0, 0, "on|off", kPlain,
               "Keep the KV of prompts and answers for later requests", ""},
    OptionInfo{"kv-host-memory", "kv.host_memory", &O::kv_host_memory, kKvSide, "SIZE", "auto",
               kMiB, 1024 * kTiB, "", kPlain, "Host memory for cached KV",
               "auto: an eighth of the available memory, from 64MiB to 64GiB."},
    OptionInfo{"kv-disk", "kv.disk", &O::kv_disk, kKvSide, "on|off", "on", 0, 0, "on|off", kPlain,
               "Keep cached KV on disk too", ""},
    OptionInfo{"kv-disk-size", "kv.disk_size", &O::kv_disk_size, kKvSide, "SIZE", "auto",
               1024 * kMiB, 16 * kTiB, "", kPlain, "Room on disk for cached KV",
               "auto: a tenth of what is free in the folder, from 1GiB to 256GiB."},
    OptionInfo{"kv-dir", "kv.dir", &O::kv_dir, kKvSide | commands(kKv), "DIR", "auto", 0, 0, "",
               kPath, "Folder for cached KV", "auto: kv in the data folder."},
    OptionInfo{"kv-scope", "kv.scope", &O::kv_scope, kGatewaySide, "SCOPE", "tenant", 0, 0,
               "tenant|user|deployment", kPlain, "Who may share cached KV",
               "tenant: requests of one API key; user: of one user id of one key; deployment: "
               "everyone, who can then tell from an answer's time what others have asked."},
    OptionInfo{"kv-class", "kv.classes", &O::kv_classes, kBoth | commands(kKvd), "NAME=TIME",
               "auto", 0, 0, "", kPlain,
               "Keep KV of class NAME for TIME after its last use; repeatable",
               "The first is the default class. auto: default=1d, chat=7d, agent=3d. Requests name "
               "one in `cache_class`; others are agent with tools and chat without."},
    OptionInfo{"kv-tenant-share", "kv.tenant_share", &O::kv_tenant_share, kKvSide, "X", "0.5", 0.01,
               1, "", kPlain, "Part of memory and of disk that one tenant may hold",
               "Beyond it a tenant's own blocks go first when others need room; alone it may use "
               "everything."},
    OptionInfo{"kv-disk-time-max", "kv.disk_time_max", &O::kv_disk_time_max, kKvSide, "TIME", "5s",
               100 * kMs, kHour, "", kPlain,
               "How long a disk operation may take before the KV disk tier is suspended",
               "Until the device answers again everything on disk is a miss. Raise it for slow "
               "network disks."},
    OptionInfo{"kv-fetch-time", "kv.fetch_time", &O::kv_fetch_base, kWorkerSide, "TIME", "50ms", 0,
               kHour, "", kPlain,
               "How long a request waits for cached KV at most, plus --kv-fetch-time-1k",
               "What has arrived by then is used; the rest is computed."},
    OptionInfo{"kv-fetch-time-1k", "kv.fetch_time_1k", &O::kv_fetch_per_1k, kWorkerSide, "TIME",
               "20ms", 0, kHour, "", kPlain,
               "Further waiting time for each 1,024 tokens of the prompt", ""},
    OptionInfo{"kv-secret-file", "kv.secret_file", &O::kv_secret_file, kBoth | commands(kKvd, kKv),
               "FILE", "auto", 0, 0, "", kPath, "Secret that names cached KV",
               "auto: kv.secret in the data folder, made at the first start. Hosts that share a "
               "cache need the same file."},
    OptionInfo{"kv-encryption-key-file", "kv.encryption_key_file", &O::kv_encryption_key_file,
               kKvSide | commands(kKv), "FILE", "", 0, 0, "", kPath,
               "Encrypt cached KV on disk with this key",
               "64 hexadecimal digits; only its owner may be able to read the file."},
    OptionInfo{"kv-listen", "kv.listen", &O::kv_listen, kKvSide, "HOST:PORT", "", 0, 0, "", kPlain,
               "Serve cached KV to the KV daemons of other hosts",
               "Only to those that know the secret; what travels is not encrypted, so the network "
               "between the hosts must be trusted."},
    OptionInfo{"kv-peer", "kv.peers", &O::kv_peers, kKvSide, "NAME=HOST:PORT", "", 0, 0, "", kPlain,
               "Get cached KV from the KV daemon at HOST:PORT, too; repeatable",
               "It is given the same address with --kv-listen. NAME is for people."},
    OptionInfo{"dry-run", "", &O::dry_run, commands(kKv), "", "false", 0, 0, "", kPlain,
               "gc: say what would be removed and remove nothing", ""},
    OptionInfo{"tier", "", &O::kv_tier, commands(kKv), "TIER", "all", 0, 0, "host|disk|all", kPlain,
               "verify: read the blocks in host memory, those on disk, or all", ""},
    OptionInfo{"wait", "", &O::wait, commands(kKv), "", "false", 0, 0, "", kPlain,
               "warm: return when the prompt can be hit, and has been written to disk",
               "It is asked for again, so that classes which wait for a second use write it."},
    OptionInfo{"kv-scope-filter", "", &O::kv_scope_filter, commands(kKv), "TEXT", "", 0, 0, "",
               kPlain, "export: only scopes that contain TEXT",
               "`penstock kv ls` shows scopes, such as tenant:acme."},
    OptionInfo{"kv-socket", "kv.socket", &O::kv_socket, commands(kGateway, kWorker, kKvd, kKv),
               "PATH", "auto", 0, 0, "", kPath, "Unix socket of the KV daemon",
               "auto: run/kvd.sock in the data folder."},

    OptionInfo{"expert-plan-interval", "experts.plan_interval", &O::expert_plan_interval,
               kGatewaySide, "TIME", "0", 0, 24 * kHour, "", kPlain,
               "Plan where experts run this often, from the loads since; 0: never",
               "The gateway then gives the workers maps of experts to expert ranks; the embedded "
               "engine's are logical, and its answers stay the same."},
    OptionInfo{"expert-ranks", "experts.ranks", &O::expert_ranks, kGatewaySide, "N", "4", 1, 4096,
               "", kPlain, "Expert ranks (GPUs) of a worker that experts are placed on", ""},
    OptionInfo{"expert-slots", "experts.slots", &O::expert_slots, kGatewaySide, "N", "0", 0, 4096,
               "", kPlain, "Slots of each for a copy of an expert",
               "0: as many as the experts need, and a spare one."},
    OptionInfo{"expert-groups", "experts.groups", &O::expert_groups, kGatewaySide, "N", "1", 1,
               4096, "", kPlain, "Groups of experts that tokens are routed to together",
               "When the nodes divide them, each group stays on one node."},
    OptionInfo{"expert-nodes", "experts.nodes", &O::expert_nodes, kGatewaySide, "N", "1", 1, 4096,
               "", kPlain, "Nodes that the expert ranks are on", ""},
    OptionInfo{"expert-layer-moves", "experts.layer_moves", &O::expert_layer_moves, kGatewaySide,
               "N", "32", 1, 65536, "", kPlain,
               "Copies of experts that a round may move in one layer", ""},
    OptionInfo{"expert-round-moves", "experts.round_moves", &O::expert_round_moves, kGatewaySide,
               "N", "1024", 1, 4'000'000, "", kPlain,
               "Copies of experts that a round may move in all layers together", ""},
    OptionInfo{"gpus", "", &O::expert_ranks, commands(kExperts), "N", "4", 1, 4096, "", kPlain,
               "plan: GPUs to place experts on", ""},
    OptionInfo{"slots", "", &O::expert_slots, commands(kExperts), "N", "0", 0, 4096, "", kPlain,
               "plan: slots of each GPU", "0: as many as the experts need, and a spare one."},
    OptionInfo{"groups", "", &O::expert_groups, commands(kExperts), "N", "1", 1, 4096, "", kPlain,
               "plan: groups of experts that tokens are routed to together",
               "When the nodes divide them, each group stays on one node."},
    OptionInfo{"nodes", "", &O::expert_nodes, commands(kExperts), "N", "1", 1, 4096, "", kPlain,
               "plan: nodes that the GPUs are on", ""},
    OptionInfo{"baseline", "", &O::baseline, commands(kExperts), "", "false", 0, 0, "", kPlain,
               "plan: with the public EPLB algorithm instead of the search",
               "It may put two copies of an expert on one GPU."},
    OptionInfo{"weighted", "", &O::weighted, commands(kExperts), "", "false", 0, 0, "", kPlain,
               "plan: for engines that split an expert's traffic over its copies by given shares",
               ""},
    OptionInfo{"map-format", "", &O::map_format, commands(kExperts), "FORMAT", "maps", 0, 0,
               "maps|sglang", kPlain, "plan: what --out writes",
               "maps: physical-to-logical and logical-to-physical maps; sglang: the file of its "
               "--init-expert-location."},
    OptionInfo{"seconds", "", &O::record_seconds, commands(kExperts), "N", "60", 1, 604'800, "",
               kPlain, "record: how long", ""},
    OptionInfo{"window", "", &O::record_window, commands(kExperts), "TIME", "1s", 10 * kMs, kHour,
               "", kPlain, "record: loads are summed over this long", ""},
    OptionInfo{"out", "", &O::out, commands(kExperts, kProfile), "FILE", "", 0, 0, "", kPath,
               "File to write; -o is short for it",
               "record, profile: standard output without it. plan: only the report is printed "
               "without it; --json has the maps, too."},

    OptionInfo{"worker", "gateway.workers", &O::workers, commands(kGateway, kExperts),
               "NAME=ADDRESS", "", 0, 0, "", kPlain, "Connect to this worker; repeatable",
               "ADDRESS is unix:/path or HOST:PORT. Without any: the workers of --pools on this "
               "machine."},
    OptionInfo{"name", "worker.name", &O::worker_name, commands(kWorker), "NAME", "worker-0", 0, 0,
               "", kPlain, "Name of this worker in logs, metrics and reasons", ""},
    OptionInfo{"role", "worker.role", &O::role, commands(kWorker), "ROLE", "mixed", 0, 0,
               "prefill|decode|mixed", kPlain, "What this worker does",
               "prefill computes prompts, decode goes on after them, mixed does both."},
    OptionInfo{"worker-socket", "worker.socket", &O::worker_socket, commands(kWorker), "PATH",
               "auto", 0, 0, "", kPath, "Unix socket on which gateways reach this worker",
               "auto: run/NAME.sock in the data folder."},
    OptionInfo{"worker-listen", "worker.listen", &O::worker_listen, commands(kWorker), "HOST:PORT",
               "", 0, 0, "", kPlain, "Listen for gateways there instead of on the socket",
               "For a private network: the control plane is neither authenticated nor encrypted."},
    OptionInfo{"ready-fd", "", &O::ready_fd, commands(kServe, kGateway, kWorker, kKvd), "N", "0", 0,
               1'000'000, "", kPlain, "File descriptor on which to report readiness; 0 = none",
               "For supervisors: one JSON line says where it serves or why it does not."},

    OptionInfo{"log-level", "log.level", &O::log_level,
               kBoth | commands(kEval, kKvd, kKv, kExperts, kProfile), "LEVEL", "info", 0, 0,
               "debug|info|warning|error", kPlain, "Least severe log lines shown on stderr", ""},
    OptionInfo{"log-format", "log.format", &O::log_format, kBoth | commands(kKvd), "FORMAT", "text",
               0, 0, "text|json", kPlain, "Log lines as text or JSON", ""},
    OptionInfo{"access-log", "log.access_file", &O::access_log, kGatewaySide, "FILE", "", 0, 0, "",
               kPath, "Write one JSON line per request to this file instead of stderr",
               "Never holds content of requests or answers, nor keys."},

    OptionInfo{"url", "", &O::url, kUrlUsers, "URL", "", 0, 0, "", kPlain, "Server to talk to",
               "chat, kv warm: http://127.0.0.1:8080 when not given; eval: starts its own server."},
    OptionInfo{"ca-file", "", &O::ca_file, kUrlUsers, "FILE", "", 0, 0, "", kPath,
               "Trust the certificates in this file (PEM) instead of the system's", ""},
    OptionInfo{"model", "", &O::chat_model, commands(kChat), "NAME", "", 0, 0, "", kPlain,
               "Model to ask for; the server's first when not given", ""},
    OptionInfo{"model", "", &O::chat_model, commands(kExperts), "NAME", "", 0, 0, "", kPlain,
               "Model to look at; the first with routed experts when not given", ""},
    OptionInfo{"ask-model", "", &O::chat_model, commands(kEval), "NAME", "", 0, 0, "", kPlain,
               "Model to ask for; the server's first when not given", ""},
    OptionInfo{"system", "", &O::system_prompt, commands(kChat), "TEXT", "", 0, 0, "", kPlain,
               "System prompt", ""},
    OptionInfo{"max-tokens", "", &O::max_tokens, kClients, "N", "0", 0, 10'000'000, "", kPlain,
               "Tokens of an answer at most; 0 lets the server decide", ""},
    OptionInfo{"temperature", "", &O::temperature, commands(kChat), "X", "1", 0, 2, "", kPlain,
               "0 always takes the likeliest token, higher varies more", ""},
    OptionInfo{"verbose", "", &O::verbose, kClients, "", "false", 0, 0, "", kPlain,
               "Show more: tokens and speed after each answer of chat, wrong answers of eval", ""},

    OptionInfo{"suite", "", &O::suite, commands(kEval), "NAME", "skills", 0, 0, "skills", kPlain,
               "Suite to run", ""},
    OptionInfo{"suite-dir", "", &O::suite_dir, commands(kEval), "DIR", "auto", 0, 0, "", kPath,
               "Folder of the suite's *.jsonl files",
               "auto: the heldout folder of the first model's checkpoint."},
    OptionInfo{"concurrency", "", &O::concurrency, commands(kEval), "N", "16", 1, 1024, "", kPlain,
               "Requests in flight", ""},
    OptionInfo{"items", "", &O::items_max, commands(kEval), "N", "0", 0, 1'000'000, "", kPlain,
               "Items per skill at most; 0 = all", ""},
    OptionInfo{"quick", "", &O::quick, commands(kBench, kProfile), "", "false", 0, 0, "", kPlain,
               "Shorter and noisier", ""},
    OptionInfo{"reference-dir", "", &O::reference_dir, commands(kBench), "DIR", "auto", 0, 0, "",
               kPath, "Folder with the reference tokenizer and vocabularies",
               "auto: tools/tokenizer_reference of the source tree."},
};

}  // namespace

std::span<const OptionInfo> option_table() {
  return kTable;
}

}  // namespace penstock
