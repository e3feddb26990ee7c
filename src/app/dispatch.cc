#include "app/dispatch.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/console.h"
#include "app/emulate_command.h"
#include "app/environment.h"
#include "app/help.h"
#include "app/process_memory.h"
#include "app/ready.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

Result<int> run_command(Command command, const Options& options) {
  switch (command) {
    case Command::kServe:
      return run_serve(options);
    case Command::kChat:
      return run_chat(options);
    case Command::kDoctor:
      return run_doctor(options);
    case Command::kEval:
      return run_eval(options);
    case Command::kBench:
      return run_bench(options);
    case Command::kConfig:
      return run_config(options);
    case Command::kGateway:
      return run_gateway(options);
    case Command::kWorker:
      return run_worker(options);
    case Command::kKvd:
      return run_kvd(options);
    case Command::kKv:
      return run_kv(options);
    case Command::kSimulate:
      return run_simulate(options);
    case Command::kPlan:
      return run_plan(options);
    case Command::kExperts:
      return run_experts(options);
    case Command::kProfile:
      return run_profile(options);
    case Command::kEmulate:
      return run_emulate(options);
    case Command::kExplain:
      return run_explain(options);
  }
  return fail(ErrorCode::kInternal, "a command without a function");
}

Result<int> run(std::vector<std::string> arguments) {
  TRY(const auto line, parse_command_line(std::move(arguments), read_environment()));
  if (line.version) return print_data("penstock " PENSTOCK_VERSION);
  if (line.help)
    return print_data(line.command == nullptr ? overview_text() : command_help(*line.command));
  TRY(const auto level, parse_log_level(line.options.log_level));
  TRY(const auto format, parse_log_format(line.options.log_format));
  set_up_log({.process = line.options.command, .level = level, .format = format});
  return run_command(line.command->id, line.options);
}

}  // namespace

int dispatch(int argc, const char* const* argv) {
  keep_freed_memory();
  const auto code = run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  if (code) return *code;
  // Under a supervisor the reason went there; saying it twice would confuse.
  if (failure_was_reported()) return error_info(code.error().code).exit_code;
  return print_error(code.error());
}

}  // namespace penstock
