#include "io/files/kv_secret.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>

#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Bytes kFileMax{4096};

std::unexpected<Error> bad(const std::string& path, int line, std::string_view what) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}:{}: {}; expected the KV secret as 64 hexadecimal digits: copy the "
                          "file from another host of this deployment, or make a new one with "
                          "`openssl rand -hex 32`",
                          path, line, what));
}

Result<KvSecret> parse_line(std::string_view digits, const std::string& path, int line) {
  KvSecret secret{};
  if (digits.size() != 2 * secret.size())
    return bad(path, line, fmt::format("{} characters", digits.size()));
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const char* const begin = digits.data() + 2 * i;
    const auto parsed = std::from_chars(begin, begin + 2, secret[i], 16);
    if (parsed.ec != std::errc{} || parsed.ptr != begin + 2)
      return bad(path, line,
                 fmt::format("character {} or the one after it is no digit", 2 * i + 1));
  }
  return secret;
}

}  // namespace

Result<KvSecret> read_kv_secret(const std::string& path) {
  TRY(const std::string content, read_secret_file(path, kFileMax));
  std::string_view text = content;
  KvSecret secret{};
  for (int line = 1; line == 1 || !text.empty(); ++line) {
    const auto end = std::min(text.find('\n'), text.size());
    auto digits = text.substr(0, end);
    if (digits.ends_with('\r')) digits.remove_suffix(1);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line > 2) return bad(path, line, "a third line");
    TRY(const KvSecret parsed, parse_line(digits, path, line));
    if (line == 1) secret = parsed;
  }
  return secret;
}

Result<KvSecret> read_or_create_kv_secret(const std::string& path, const KvSecret& fresh) {
  auto existing = read_kv_secret(path);
  if (existing || existing.error().code != ErrorCode::kNotFound) return existing;
  // A hard link fails when the file has come up meanwhile, where a rename would replace it.
  const std::string made = fmt::format("{}.new-{}", path, ::getpid());
  TRY_STATUS(write_file_atomically(made, fmt::format("{:02x}\n", fmt::join(fresh, "")), 0600));
  const int error = ::link(made.c_str(), path.c_str()) == 0 ? 0 : errno;
  ::unlink(made.c_str());
  if (error != 0 && error != EEXIST)
    return fail(ErrorCode::kIo, fmt::format("cannot create the KV secret {}: {}", path,
                                            std::generic_category().message(error)));
  return read_kv_secret(path);
}

}  // namespace penstock
