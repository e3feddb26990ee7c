#include "io/telemetry/process_metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace penstock {
namespace {

std::string slurp(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sample(std::string_view name, std::string_view kind, std::string_view help,
                   double value) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n", name, kind, help, value);
}

// Field n (from 1, as in proc(5)) of /proc/self/stat; fields after the name, which may hold spaces.
std::vector<double> stat_fields() {
  const std::string stat = slurp("/proc/self/stat");
  std::vector<double> fields(3, 0.0);  // index 0 unused, pid, name
  const auto end = stat.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(stat.substr(end + 1));
  for (std::string word; rest >> word;)
    fields.push_back(std::strtod(word.c_str(), nullptr));
  return fields;
}

double boot_time() {
  std::istringstream lines(slurp("/proc/stat"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("btime ")) return std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

}  // namespace

std::string process_exposition() {
  std::string out;
  const auto fields = stat_fields();
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (fields.size() > 24 && ticks > 0) {
    out += sample("process_cpu_seconds_total", "counter", "User and system CPU time.",
                  (fields[14] + fields[15]) / ticks);
    out += sample("process_threads", "gauge", "Threads of the process.", fields[20]);
    out += sample("process_resident_memory_bytes", "gauge", "Memory in use.",
                  fields[24] * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    if (const double boot = boot_time(); boot > 0)
      out += sample("process_start_time_seconds", "gauge", "Start of the process, Unix time.",
                    boot + fields[22] / ticks);
  }
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  double open = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    ++open;
  if (!error) out += sample("process_open_fds", "gauge", "Open file descriptors.", open - 1);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    out += sample("process_max_fds", "gauge", "Most file descriptors allowed.",
                  static_cast<double>(limit.rlim_cur));
  return out;
}

}  // namespace penstock
