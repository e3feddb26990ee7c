#include "app/kept_runs.h"

#include <fmt/format.h>

#include <fstream>
#include <string_view>

namespace penstock {
namespace {

constexpr std::string_view kHeading = "penstock runs 1: ";
constexpr Bytes kFileMax{std::int64_t{1} << 30};

}  // namespace

Result<std::unique_ptr<KeptRuns>> KeptRuns::open(const std::string& path,
                                                 const std::string& made_by) {
  auto runs = std::make_unique<KeptRuns>();
  if (path.empty()) return runs;
  runs->path_ = path;
  TRY(runs->lock_, FileLock::acquire(path + ".lock"));
  const std::string heading = fmt::format("{}{}\n", kHeading, made_by);
  auto kept = read_file(path, kFileMax);
  if (!kept && kept.error().code != ErrorCode::kNotFound)
    return std::unexpected(std::move(kept).error());
  if (!kept || kept->empty()) {
    TRY_STATUS(write_file_atomically(path, heading));
    return runs;
  }
  if (!kept->starts_with(heading))
    return fail(ErrorCode::kConflict,
                fmt::format("{} holds runs of another program, trace, profile or options; name "
                            "another file, or remove it",
                            path),
                "runs");
  std::string_view rest = std::string_view(*kept).substr(heading.size());
  for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (const std::size_t tab = line.find('\t'); tab != std::string_view::npos)
      runs->runs_.insert_or_assign(std::string(line.substr(0, tab)),
                                   std::string(line.substr(tab + 1)));
  }
  if (!rest.empty())
    TRY_STATUS(
        write_file_atomically(path, std::string_view(*kept).substr(0, kept->size() - rest.size())));
  return runs;
}

sim::RunMemory KeptRuns::memory() {
  return {.recall = [this](const std::string& key) -> std::optional<std::string> {
            const std::scoped_lock held(mutex_);
            const auto found = runs_.find(key);
            return found == runs_.end() ? std::nullopt : std::optional(found->second);
          },
          .keep = [this](const std::string& key, const std::string& value) { keep(key, value); }};
}

void KeptRuns::keep(const std::string& key, const std::string& value) {
  const std::scoped_lock held(mutex_);
  runs_[key] = value;
  if (path_.empty() || !written_) return;
  std::ofstream out(path_, std::ios::app);
  out << key << '\t' << value << '\n' << std::flush;
  if (!out)
    written_ = fail(ErrorCode::kIo,
                    fmt::format("{} can't be written; what is run from now on is not kept", path_),
                    "runs");
}

}  // namespace penstock
