#include "io/files/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/sha256.h"
#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Bytes kFileMax{8 << 20};
constexpr std::size_t kKeysMax = 10'000;
constexpr std::size_t kNameMax = 64;
constexpr std::size_t kKeyMin = 16;
constexpr std::size_t kKeyMax = 512;
constexpr std::string_view kBlank = " \t\r";

std::string_view trim(std::string_view text) {
  const auto start = text.find_first_not_of(kBlank);
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(kBlank) - start + 1);
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

// What is wrong with a line, or empty. Never says the key.
std::string problem_of(std::string_view name, std::string_view key) {
  if (key.empty()) return "expected two words: NAME KEY";
  if (!is_name(name))
    return fmt::format("the name must be 1 to {} letters, digits, '.', '_' or '-'", kNameMax);
  if (key.find_first_of(kBlank) != std::string_view::npos)
    return "expected NAME KEY [class=CLASS] [priority=N] [weight=X], found more (a key has no "
           "spaces)";
  if (key.size() < kKeyMin || key.size() > kKeyMax)
    return fmt::format(
        "the key of \"{}\" must have {} to {} characters; `openssl rand -hex 24` makes one", name,
        kKeyMin, kKeyMax);
  if (!std::ranges::all_of(key, [](char c) { return c > ' ' && c < 0x7F; }))
    return fmt::format("the key of \"{}\" must be visible ASCII", name);
  return {};
}

template <typename T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  TRY(const std::string text, read_secret_file(path, kFileMax));
  return parse(text, path);
}

Result<ApiKeys> ApiKeys::parse(std::string_view text, std::string_view path) {
  ApiKeys keys;
  std::size_t line_number = 0;
  const auto bad = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path, line_number, what));
  };
  while (!text.empty()) {
    ++line_number;
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const auto gap = std::min(line.find_first_of(kBlank), line.size());
    const auto name = line.substr(0, gap);
    auto key = trim(line.substr(gap));
    const auto cut_attribute = [&key](std::string_view prefix) {
      const auto last = key.find_last_of(kBlank);
      std::optional<std::string_view> value;
      if (last == std::string_view::npos || !key.substr(last + 1).starts_with(prefix)) return value;
      value = key.substr(last + 1 + prefix.size());
      key = trim(key.substr(0, last));
      return value;
    };
    std::string_view cache_class;
    std::optional<Share> share;
    while (true) {
      if (const auto given = cut_attribute("class=")) {
        if (!is_name(*given)) return bad("class= needs the name of a cache class");
        cache_class = *given;
      } else if (const auto n = cut_attribute("priority=")) {
        if (!share) share.emplace();
        if (!parse_number(*n, share->priority) || std::abs(share->priority) > 100)
          return bad("priority= needs a whole number from -100 to 100");
      } else if (const auto x = cut_attribute("weight=")) {
        if (!share) share.emplace();
        if (!parse_number(*x, share->weight) || !(share->weight >= 0.01 && share->weight <= 1000))
          return bad("weight= needs a number from 0.01 to 1000");
      } else {
        break;
      }
    }
    if (const auto problem = problem_of(name, key); !problem.empty()) return bad(problem);
    if (keys.entries_.size() == kKeysMax) return bad(fmt::format("more than {} keys", kKeysMax));
    Entry entry{sha256(key), std::string(name)};
    for (const auto& other : keys.entries_) {
      if (other.name == entry.name) return bad(fmt::format("the name \"{}\" appears twice", name));
      if (other.digest == entry.digest)
        return bad(fmt::format("\"{}\" has the same key as \"{}\"", name, other.name));
    }
    if (!cache_class.empty()) keys.cache_classes_[entry.name] = cache_class;
    if (share) keys.shares_[entry.name] = *share;
    keys.entries_.push_back(std::move(entry));
  }
  if (keys.entries_.empty())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds no keys; add a line: NAME KEY", path));
  return keys;
}

std::optional<std::string_view> ApiKeys::lookup(std::string_view presented) const {
  const Digest digest = sha256(presented);
  std::optional<std::string_view> found;
  for (const auto& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = entry.name;
  }
  return found;
}

}  // namespace penstock
