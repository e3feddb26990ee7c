// What a process finds around it when it resolves its options: home, folders, machine.
// A value, so that parsing can be tested without the machine it runs on.
// Concurrency: a value.
#pragma once

#include <string>

#include "io/files/machine.h"

namespace penstock {

struct Environment {
  std::string home;         // $HOME
  std::string data_home;    // $XDG_DATA_HOME
  std::string working_dir;  // absolute
  std::string executable;   // absolute path of this program
  std::string config_file;  // $PENSTOCK_CONFIG, used when --config is not given
  Machine machine;
};

Environment read_environment();

// The models/nano folder that comes with the program: ../share/penstock/models/nano beside an
// installed one, models/nano in a folder above a built one, or in the working folder. Empty when
// absent.
std::string find_bundled_model(const Environment& environment);

// Makes a path absolute: ~/ is the home, anything else relative to `base`.
std::string absolute_path(std::string_view path, const std::string& base,
                          const Environment& environment);

// The path itself, or the nearest folder above it that exists.
std::string nearest_existing(const std::string& path);

}  // namespace penstock
