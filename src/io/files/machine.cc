#include "io/files/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <sstream>
#include <system_error>

#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Bytes kProcFileMax{1 << 20};

std::string slurp(const char* path) {
  return read_file(path, kProcFileMax).value_or("");
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  const auto start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

// The text after the first "name<spaces>:" of a /proc file, up to the end of the line.
std::string_view field(std::string_view text, std::string_view name) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    const auto colon = line.find(':');
    if (colon != std::string_view::npos && line.starts_with(name) &&
        line.substr(name.size(), colon - name.size()).find_first_not_of(" \t") ==
            std::string_view::npos) {
      const auto value = line.substr(colon + 1);
      const auto start = value.find_first_not_of(" \t");
      return start == std::string_view::npos ? std::string_view{} : value.substr(start);
    }
    at = end + 1;
  }
  return {};
}

std::int64_t kibibytes(std::string_view meminfo, std::string_view name) {
  return static_cast<std::int64_t>(leading_number(field(meminfo, name)).value_or(0)) * 1024;
}

// Whole cores of the control group's quota; nullopt without one.
std::optional<std::uint32_t> quota_cores() {
  std::istringstream v2(slurp("/sys/fs/cgroup/cpu.max"));
  double quota = 0;
  double period = 0;
  if (!(v2 >> quota >> period)) {  // "max 100000" fails to parse, as it should
    quota = static_cast<double>(
        leading_number(slurp("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")).value_or(0));
    period = static_cast<double>(
        leading_number(slurp("/sys/fs/cgroup/cpu/cpu.cfs_period_us")).value_or(0));
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<std::uint32_t>(std::max(1.0, quota / period));
}

std::uint32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::uint32_t cores = 1;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    cores = static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&set)));
  return std::min(cores, quota_cores().value_or(cores));
}

// The control group's memory limit and what of it is used; nullopt without a limit.
struct MemoryLimit {
  std::int64_t limit;
  std::int64_t used;
};
std::optional<MemoryLimit> memory_limit() {
  auto limit = leading_number(slurp("/sys/fs/cgroup/memory.max"));
  auto used = leading_number(slurp("/sys/fs/cgroup/memory.current"));
  if (!limit) {
    limit = leading_number(slurp("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    used = leading_number(slurp("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
  }
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  // version 1 writes a huge number
  if (!limit || *limit >= kNoLimit) return std::nullopt;
  return MemoryLimit{static_cast<std::int64_t>(*limit),
                     static_cast<std::int64_t>(used.value_or(0))};
}

// "always [madvise] never" -> "madvise"
std::string bracketed(std::string_view text) {
  const auto open = text.find('[');
  const auto close = text.find(']', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

}  // namespace

Machine read_machine() {
  Machine machine;
  const std::string cpu = slurp("/proc/cpuinfo");
  machine.cpu_model = std::string(field(cpu, "model name"));
  std::istringstream features{std::string(field(cpu, "flags"))};
  for (std::string feature; features >> feature;)
    machine.cpu_features.push_back(feature);
  machine.cores = usable_cores();

  const std::string memory = slurp("/proc/meminfo");
  std::int64_t total = kibibytes(memory, "MemTotal");
  std::int64_t available = kibibytes(memory, "MemAvailable");
  if (const auto group = memory_limit(); group && (total == 0 || group->limit < total)) {
    total = group->limit;
    const auto left = std::max<std::int64_t>(0, group->limit - group->used);
    available = available == 0 ? left : std::min(available, left);
  }
  machine.memory_total = Bytes(total);
  machine.memory_available = Bytes(available);
  machine.huge_pages_free = leading_number(field(memory, "HugePages_Free")).value_or(0);
  machine.transparent_huge_pages = bracketed(slurp("/sys/kernel/mm/transparent_hugepage/enabled"));
  return machine;
}

Result<DiskSpace> disk_space(const std::string& path) {
  struct statvfs info{};
  if (::statvfs(path.c_str(), &info) != 0)
    return fail(ErrorCode::kIo, fmt::format("cannot read the size of the file system of {}: {}",
                                            path, std::generic_category().message(errno)));
  const auto unit = static_cast<std::int64_t>(info.f_frsize);
  return DiskSpace{Bytes(static_cast<std::int64_t>(info.f_blocks) * unit),
                   Bytes(static_cast<std::int64_t>(info.f_bavail) * unit)};
}

std::string executable_path() {
  std::string path(4096, '\0');
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size());
  if (n <= 0) return {};
  path.resize(static_cast<std::size_t>(n));
  return path;
}

}  // namespace penstock
