#include "app/environment.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "config.json", error);
}

}  // namespace

Environment read_environment() {
  std::error_code error;
  Environment environment;
  environment.home = variable("HOME");
  environment.data_home = variable("XDG_DATA_HOME");
  environment.config_file = variable("PENSTOCK_CONFIG");
  environment.working_dir = fs::current_path(error).string();
  environment.executable = executable_path();
  environment.machine = read_machine();
  return environment;
}

std::string find_bundled_model(const Environment& environment) {
  const fs::path nano = fs::path("models") / "nano";
  fs::path folder = fs::path(environment.executable).parent_path();
  if (const auto installed = folder.parent_path() / "share" / "penstock" / nano;
      is_checkpoint(installed))
    return installed.string();
  constexpr int kLevels = 4;  // build/<preset>/penstock lies two below the source tree
  for (int level = 0; level < kLevels && folder.has_relative_path(); ++level) {
    if (is_checkpoint(folder / nano)) return (folder / nano).string();
    folder = folder.parent_path();
  }
  const auto here = fs::path(environment.working_dir) / nano;
  return is_checkpoint(here) ? here.string() : std::string();
}

std::string absolute_path(std::string_view path, const std::string& base,
                          const Environment& environment) {
  if (path.empty()) return {};
  if (path == "~") path = environment.home;
  if (path.starts_with("~/") && !environment.home.empty())
    return (fs::path(environment.home) / path.substr(2)).lexically_normal().string();
  return (fs::path(base) / path).lexically_normal().string();
}

std::string nearest_existing(const std::string& path) {
  std::error_code error;
  std::filesystem::path existing = path;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  return existing.string();
}

}  // namespace penstock
