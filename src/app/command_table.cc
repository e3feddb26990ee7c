#include "app/command_table.h"

#include <algorithm>
#include <array>

namespace penstock {
namespace {

constexpr std::array kTable = {
    CommandInfo{
        Command::kServe, "serve", "Run", "", 0, "Serve models over HTTP on this machine",
        "Starts a KV daemon, the workers of all pools and a gateway, waits until they are ready, "
        "prints the address and restarts what dies. SIGTERM or Ctrl-C lets running requests finish "
        "and stops; a "
        "second one stops at once. Without API keys it listens on the loopback interface only.",
        "penstock serve                                 # the nano model on port 8080\n"
        "penstock serve --port 0 --json                 # a free port, told as JSON\n"
        "penstock serve --pools mixed=1                 # one worker for prompts and answers\n"
        "penstock serve --model nano=models/nano --alias gpt-4o-mini=nano\n"
        "penstock serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key "
        "key.pem\n"},
    CommandInfo{
        Command::kChat, "chat", "Use", "[QUESTION...]", 1000, "Talk to a model in the terminal",
        "With a question it prints the answer and ends; with text on standard input it appends "
        "that to the question; otherwise it is a conversation: /help lists its commands and "
        "Ctrl-C stops the current answer only. The API key, if the server wants one, is read from "
        "the environment variable PENSTOCK_API_KEY.",
        "penstock chat\n"
        "penstock chat \"What is 17 + 25?\"\n"
        "penstock chat --system \"Answer in one word.\" --temperature 0\n"
        "penstock chat \"Summarise:\" < notes.txt\n"},
    CommandInfo{
        Command::kDoctor, "doctor", "Set up", "", 0,
        "Check this machine and the configuration, and say what to do",
        "Checks the processor, memory, data folder, port, checkpoints, TLS files and API keys, and "
        "whether a server answers. Takes the flags of serve. Exit code 1 when a check fails.",
        "penstock doctor\n"
        "penstock doctor --model mine=/models/mine --port 9000\n"
        "penstock doctor --fetch https://example.com/picture.png\n"},
    CommandInfo{
        Command::kEval, "eval", "Measure", "", 0, "Measure the quality of a served model",
        "Sends a suite's held-out items at temperature 0 and compares the answers exactly (tool "
        "calls as JSON values). Without --url it serves the model itself on a free port.",
        "penstock eval --suite skills\n"
        "penstock eval --suite skills --url http://127.0.0.1:8080 --json\n"},
    CommandInfo{Command::kBench, "bench", "Measure", "NAME|all|list", 1,
                "Measure speed, each figure beside its baseline in the same run",
                "Prints figures with their baseline, the ratio (above 1 is better than the "
                "baseline) and the "
                "ratio aimed at.",
                "penstock bench list\n"
                "penstock bench all --quick\n"
                "penstock bench engine --json\n"},
    CommandInfo{
        Command::kConfig, "config", "Set up", "show | explain [KEY] | docs cli|config|metrics", 2,
        "Show and explain the configuration",
        "`show` prints the effective configuration, which is also a valid configuration file; "
        "`explain` describes one key or flag, or lists all; `docs` prints the reference pages.",
        "penstock config show --config penstock.yaml\n"
        "penstock config explain engine.kv_memory\n"
        "penstock config docs config\n"},
    CommandInfo{Command::kExplain, "explain", "Operate", "REQUEST", 1,
                "Why a recent request was placed where it was",
                "Asks the gateway that runs with this data folder for the placements of a request: "
                "the candidates with their scores (lower is better), the policy and its reason, "
                "for the rank that computed the prompt and the one that generated the answer. The "
                "id is in the access log and in the answer's x-request-id header. Only the last "
                "requests are kept, and nothing of what was asked or answered.",
                "penstock explain req-4f1c22d09ab35e7c8d1e0f42\n"
                "penstock explain my-id --data-dir /var/lib/penstock --json\n"},
    CommandInfo{Command::kGateway, "gateway", "Parts of serve", "", 0,
                "The process that speaks HTTP; started by serve",
                "Connects to the workers, encodes prompts, places requests, streams answers.",
                "penstock gateway --port 8080\n"
                "penstock gateway --worker a=unix:/tmp/a.sock --worker b=10.0.0.5:7000\n"},
    CommandInfo{Command::kWorker, "worker", "Parts of serve", "", 0,
                "The process that holds the engine; started by serve",
                "Loads the models and serves gateways on a Unix socket or TCP.",
                "penstock worker --name a --worker-socket /tmp/a.sock --model nano=models/nano\n"
                "penstock worker --name p --role prefill --ranks 2 --worker-listen 10.0.0.5:7000 "
                "--transport tcp:10.0.0.5:7001\n"},
    CommandInfo{Command::kKvd, "kvd", "Parts of serve", "", 0,
                "The KV cache of this host: memory and disk; started by serve",
                "Keeps the KV of prompts in host memory and on disk for the workers of this host.",
                "penstock kvd --data-dir /var/lib/penstock --kv-host-memory 16GiB\n"},
    CommandInfo{
        Command::kKv, "kv", "Operate",
        "stat | ls | explain REQUEST | warm FILE [--wait] | export FILE | import FILE | "
        "verify [--tier TIER] | gc [--dry-run] | flush",
        2, "Look into the KV cache and look after it",
        "`stat` shows each tier, class and tenant; `ls` the scopes and builds that memory holds, "
        "and "
        "the sum of each class on disk (its index knows no scopes); "
        "`explain` "
        "says for each block of a recent request where it was found or why not; `warm` computes "
        "the "
        "prompt in a file (text, or the JSON body of a chat completion) through the API, so that "
        "it "
        "is kept; `export` writes all blocks into one file, unencrypted, and `import` stores those "
        "of a "
        "file from a daemon with the same secret; `verify` checks every checksum; `gc` removes "
        "what nobody can use any more, in the cluster store what is over its time or its target; "
        "`flush` "
        "waits until all that was accepted is on disk.",
        "penstock kv stat\n"
        "penstock kv explain chatcmpl-123 --json\n"
        "penstock kv warm system-prompt.json --wait --url http://127.0.0.1:8080\n"
        "penstock kv export tenant-a.kv --kv-scope-filter tenant:a\n"
        "penstock kv verify --tier disk\n"},
    CommandInfo{
        Command::kExperts, "experts", "Operate",
        "show | record [--seconds N] [--out FILE] | plan FILE [--gpus N] [--slots N]", 2,
        "See how loaded the experts of a model are, and plan where they should be",
        "`show` prints what the experts and the expert ranks of a running service got, layer by "
        "layer, and which map is in use; `record` writes the loads of the coming time as JSON "
        "lines; `plan` places the experts of such a file on GPUs, says what that is worth beside "
        "the public EPLB and the floor that no placement gets below, and writes the maps that "
        "engines take. `penstock serve --expert-plan-interval 30s` plans while it runs.",
        "penstock experts show\n"
        "penstock experts record --seconds 60 --out loads.jsonl\n"
        "penstock experts plan loads.jsonl --gpus 4 --slots 5\n"
        "penstock experts plan loads.jsonl --gpus 8 --map-format sglang --out location.json\n"},
    CommandInfo{
        Command::kProfile, "profile", "Measure", "", 0,
        "Measure what the engine costs on this machine",
        "Runs prompt chunks and decode steps of many sizes on the embedded engine, fits the "
        "laws of cost that balancers, simulator and planner use, and prints them as a "
        "profile; with --out into a file. Other work on the machine shows in the figures.",
        "penstock profile\n"
        "penstock profile --engine-threads 1 --out profiles/mine.json\n"
        "penstock profile --quick --json\n"},
    CommandInfo{
        Command::kSimulate, "simulate", "Measure", "[TRACE]", 1,
        "See how a cluster would carry a load, in virtual time",
        "Runs the routing policies over models of engines: a trace (Mooncake's JSONL, the Azure "
        "CSV, or lines of {arrival_seconds, prompt_tokens, output_tokens, blocks}) or a workload "
        "made up. Prints first-token times, gaps, hits and balance; --find-load says how much "
        "load meets the service level, and how much of what anybody could serve that is.",
        "penstock simulate --load 30\n"
        "penstock simulate trace.jsonl --load 80 --html report.html\n"
        "penstock simulate trace.jsonl --find-load --policy least-requests\n"
        "penstock simulate --workload agents --change 300s=fail:prefill:0\n"
        "penstock simulate trace.jsonl --suite balance --json\n"},
    CommandInfo{
        Command::kPlan, "plan", "Measure", "[TRACE]", 1,
        "How many GPUs a load needs, and what else",
        "Finds the fewest prefill and decode ranks that serve a trace or a made-up workload at a "
        "service level: a closed form first (uncached tokens, Little's law), then the simulator, "
        "and both are printed. Also the width of expert parallel groups and their redundant "
        "slots, KV store, interconnect and cost, and how all of it changes with the load, the "
        "hits and the level.",
        "penstock plan trace.jsonl --load 30\n"
        "penstock plan --workload agents --rate 20 --gpu-price 2.5\n"
        "penstock plan trace.jsonl --first-token 1s --token-gap 30ms --cache-ttl 1h --json\n"
        "penstock plan --profile profiles/embedded-nano.json --workload chat --rate 2\n"},
    CommandInfo{
        Command::kEmulate, "emulate", "Measure", "vllm|sglang|llamacpp [SETTING=VALUE]...", 32,
        "Stand in for an engine: its wire protocol, without a GPU",
        "Answers as a vLLM, SGLang or llama.cpp server does, from a timing model: the text is a "
        "function of the prompt, the same on every emulator. Settings: model, key, ranks, tokens, "
        "first-token-ms, token-ms, lease-ms, old-forms, fault-status, fault-delay-ms, "
        "fault-cut-after (bytes), fault-every. POST /emulate/faults switches faults while it runs, "
        "GET /emulate/stats counts (docs/engines.md).",
        "penstock emulate vllm --port 8000\n"
        "penstock emulate sglang --port 30000 model=qwen ranks=4 token-ms=20\n"
        "penstock emulate vllm --port 8001 fault-status=500 fault-every=10\n"},
};

}  // namespace

std::span<const CommandInfo> command_table() {
  return kTable;
}

const CommandInfo* find_command(std::string_view name) {
  const auto* const found = std::ranges::find(kTable, name, &CommandInfo::name);
  return found == kTable.end() ? nullptr : found;
}

}  // namespace penstock
