// What most sources include, parsed once a build (PENSTOCK_PRECOMPILED in penstock_folder.cmake).
// Each source still includes what it uses: a build without precompiled headers must pass.
// <filesystem> and <iomanip> stay out: with std::quoted in sight, a call of a function of ours of
// that name is ambiguous.
#pragma once
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <boost/json.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <coroutine>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>
