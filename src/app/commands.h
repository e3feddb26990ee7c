// The subcommands: one function each, called by app/main with the parsed options.
//
// A command returns its exit code (0, or for `doctor` and `eval` 1 when something fails), or an
// Error that main prints to stderr and turns into the exit code of the error table. Data goes to
// stdout, logs and progress to stderr. Concurrency: a command owns the process while it runs.
#pragma once

#include <functional>
#include <memory>

#include "app/options.h"
#include "base/result.h"
#include "port/transport.h"

namespace penstock {

// Puts something around the transport of a worker's KV; for tests, which put faults there.
using WrapTransport = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>;

// Long-running processes. run_gateway and run_worker live in gateway_command.cc and
// worker_command.cc; they report through options.ready_fd (app/ready.h) and return 0 after a drain
// that SIGTERM started.
Result<int> run_serve(const Options& options);
Result<int> run_gateway(const Options& options);
Result<int> run_worker(const Options& options, const WrapTransport& wrap = {});
Result<int> run_kvd(const Options& options);

Result<int> run_kv(const Options& options);
Result<int> run_simulate(const Options& options);
Result<int> run_plan(const Options& options);
Result<int> run_experts(const Options& options);
Result<int> run_explain(const Options& options);
Result<int> run_chat(const Options& options);
Result<int> run_doctor(const Options& options);
Result<int> run_eval(const Options& options);
Result<int> run_bench(const Options& options);
Result<int> run_profile(const Options& options);
Result<int> run_config(const Options& options);

}  // namespace penstock
