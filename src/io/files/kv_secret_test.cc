#include "io/files/kv_secret.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

constexpr std::string_view kDigits =
    "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

KvSecret counting() {
  KvSecret secret{};
  for (std::size_t i = 0; i < secret.size(); ++i)
    secret[i] = static_cast<std::uint8_t>(i);
  return secret;
}

KvSecret filled(std::uint8_t value) {
  KvSecret secret{};
  secret.fill(value);
  return secret;
}

}  // namespace

TEST_CASE("the secret is the file's first line, whatever the second") {
  const auto folder = TemporaryDirectory::make("penstock-kv-secret");
  REQUIRE(folder);
  const std::string path = folder->path() + "/kv.secret";
  const std::string digits(kDigits);
  const std::string old(64, 'f');
  for (const std::string& content :
       {digits, digits + "\n", digits + "\r\n", digits + "\n" + old, digits + "\n" + old + "\n"}) {
    REQUIRE(write_file_atomically(path, content, 0600));
    CHECK(read_kv_secret(path) == counting());
  }
}

TEST_CASE("what is wrong with a secret is told with file and line, never with the secret") {
  const auto folder = TemporaryDirectory::make("penstock-kv-secret");
  REQUIRE(folder);
  const std::string path = folder->path() + "/kv.secret";
  const std::string digits(kDigits);
  std::string other = digits;
  other[10] = 'x';
  std::string sign = digits;
  sign[10] = '-';
  struct Case {
    std::string content;
    int line;
  };
  const Case cases[] = {
      {"", 1},
      {"\n", 1},
      {digits + "0", 1},
      {digits.substr(1), 1},
      {other, 1},
      {sign, 1},
      {" " + digits, 1},
      {digits + " ", 1},
      {"\n" + digits, 1},
      {digits + "\nabc", 2},
      {digits + "\n\n", 2},
      {digits + "\n" + digits + "\n" + digits, 3},
  };
  for (const Case& c : cases) {
    CAPTURE(c.content);
    REQUIRE(write_file_atomically(path, c.content, 0600));
    const auto secret = read_kv_secret(path);
    REQUIRE(!secret);
    CHECK(secret.error().code == ErrorCode::kInvalidArgument);
    CHECK(secret.error().message.starts_with(path + ":" + std::to_string(c.line) + ": "));
    CHECK(secret.error().message.find("openssl rand -hex 32") != std::string::npos);
    CHECK(secret.error().message.find("0405") == std::string::npos);
    // A file that is there is not replaced.
    CHECK(!read_or_create_kv_secret(path, filled(1)));
  }
  REQUIRE(write_file_atomically(path, digits, 0644));
  const auto open = read_kv_secret(path);
  REQUIRE(!open);
  CHECK(open.error().code == ErrorCode::kPermissionDenied);
  CHECK(open.error().message.find("chmod 600") != std::string::npos);
  const auto missing = read_kv_secret(path + "2");
  REQUIRE(!missing);
  CHECK(missing.error().code == ErrorCode::kNotFound);
  CHECK(!read_or_create_kv_secret(folder->path() + "/no/such", filled(1)));
}

TEST_CASE("a missing secret is made once, for all who ask at the same time") {
  const auto folder = TemporaryDirectory::make("penstock-kv-secret");
  REQUIRE(folder);
  const std::string path = folder->path() + "/kv.secret";
  CHECK(read_or_create_kv_secret(path, counting()) == counting());
  CHECK(read_or_create_kv_secret(path, filled(9)) == counting());
  struct stat info{};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777U) == 0600);
  CHECK(std::distance(std::filesystem::directory_iterator(folder->path()), {}) == 1);
}

TEST_CASE("processes that make the secret at the same time all get the same one") {
  const auto folder = TemporaryDirectory::make("penstock-kv-secret");
  REQUIRE(folder);
  for (int round = 0; round < 20; ++round) {
    const std::string path = folder->path() + "/secret" + std::to_string(round);
    std::vector<pid_t> children;
    for (std::uint8_t i = 1; i <= 4; ++i) {
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        const auto secret = read_or_create_kv_secret(path, filled(i));
        ::_exit(secret ? (*secret)[0] : 255);
      }
      children.push_back(child);
    }
    const auto expected = [&] { return read_kv_secret(path).value_or(KvSecret{})[0]; };
    for (const pid_t child : children) {
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == expected());
    }
  }
}

}  // namespace penstock
