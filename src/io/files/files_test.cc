#include "io/files/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "io/files/api_keys.h"
#include "io/files/machine.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

TemporaryDirectory temporary() {
  auto made = TemporaryDirectory::make("penstock-files-test");
  REQUIRE(made);
  return std::move(*made);
}

unsigned mode_of(const std::string& path) {
  struct stat info{};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 0777U;
}

}  // namespace

TEST_CASE("a file is read whole, up to the limit") {
  const auto folder = temporary();
  const std::string path = folder.path() + "/a";
  REQUIRE(write_file_atomically(path, "hello", 0640));
  CHECK(read_file(path, Bytes(5)) == "hello");
  CHECK(mode_of(path) == 0640);
  const auto larger = read_file(path, Bytes(4));
  REQUIRE(!larger);
  CHECK(larger.error().code == ErrorCode::kPayloadTooLarge);
  CHECK(larger.error().message.find(path) != std::string::npos);
  REQUIRE(write_file_atomically(path, ""));
  CHECK(read_file(path, Bytes(0)) == "");
}

TEST_CASE("what cannot be read names the path and the reason") {
  const auto folder = temporary();
  const auto missing = read_file(folder.path() + "/none", Bytes(10));
  REQUIRE(!missing);
  CHECK(missing.error().code == ErrorCode::kNotFound);
  CHECK(missing.error().message ==
        "cannot open " + folder.path() + "/none: No such file or directory");
  const auto directory = read_file(folder.path(), Bytes(10));
  REQUIRE(!directory);
  CHECK(directory.error().message.find("Is a directory") != std::string::npos);
  CHECK(!write_file_atomically(folder.path() + "/no/such", "x"));
}

TEST_CASE("an atomic write replaces the file and leaves nothing behind") {
  const auto folder = temporary();
  const std::string path = folder.path() + "/a";
  REQUIRE(write_file_atomically(path, "old"));
  REQUIRE(write_file_atomically(path, "new"));
  CHECK(read_file(path, Bytes(9)) == "new");
  REQUIRE(std::filesystem::create_directory(folder.path() + "/taken"));
  CHECK(!write_file_atomically(folder.path() + "/taken", "x"));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path()))
    ++entries;
  CHECK(entries == 2);
}

TEST_CASE("a secret that others can read is refused with the remedy") {
  const auto folder = temporary();
  const std::string path = folder.path() + "/keys";
  for (const unsigned mode : {0640U, 0604U, 0660U, 0666U}) {
    REQUIRE(write_file_atomically(path, "ci 0123456789abcdef\n", mode));
    const auto refused = ApiKeys::load(path);
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::kPermissionDenied);
    CHECK(refused.error().message.find("chmod 600 " + path) != std::string::npos);
  }
  REQUIRE(write_file_atomically(path, "ci 0123456789abcdef\n", 0600));
  CHECK(ApiKeys::load(path));
  CHECK(!read_secret_file(folder.path(), Bytes(10)));
}

TEST_CASE("API keys are looked up by what the client presents") {
  const auto keys = ApiKeys::parse(
      "# team keys\n\nci  sk-0123456789abcdef  \r\n\tops.eu\tsk-fedcba9876543210  class=agent",
      "keys");
  REQUIRE(keys);
  CHECK(keys->size() == 2);
  CHECK(keys->lookup("sk-0123456789abcdef") == "ci");
  CHECK(keys->lookup("sk-fedcba9876543210") == "ops.eu");
  CHECK(keys->cache_classes() == std::map<std::string, std::string>{{"ops.eu", "agent"}});
  CHECK(keys->shares().empty());
  const auto shared = ApiKeys::parse(
      "a 0123456789abcdef priority=-5\nb 123456789abcdef0 weight=2.5 class=chat priority=7\n",
      "keys");
  REQUIRE(shared);
  REQUIRE(shared->shares().size() == 2);
  CHECK(shared->shares().at("a").priority == -5);
  CHECK(shared->shares().at("a").weight == 1);
  CHECK(shared->shares().at("b").priority == 7);
  CHECK(shared->shares().at("b").weight == 2.5);
  CHECK(shared->cache_classes() == std::map<std::string, std::string>{{"b", "chat"}});
  CHECK(shared->lookup("123456789abcdef0") == "b");
  for (const auto* wrong : {"", "sk-0123456789abcde", "sk-0123456789abcdef0", "ci"})
    CHECK(!keys->lookup(wrong));
}

TEST_CASE("a bad key file names the line and never the key") {
  struct Case {
    std::string text;
    std::string message;
  };
  const std::string key = "sk-0123456789abcdef";
  for (const Case& c : {
           Case{"", "holds no keys"},
           Case{"# only this\n", "holds no keys"},
           Case{"ci\n", "keys:1: expected two words"},
           Case{"ci class=agent\n", "keys:1: the key of"},
           Case{"ci " + key + " class=\n", "keys:1: class= needs"},
           Case{"\nci " + key + " more\n", "keys:2: expected NAME KEY [class=CLASS] "},
           Case{"ci " + key + " priority=101\n", "keys:1: priority= needs"},
           Case{"ci " + key + " priority=high class=a\n", "keys:1: priority= needs"},
           Case{"ci " + key + " weight=0\n", "keys:1: weight= needs"},
           Case{"ci " + key + " weight=nan\n", "keys:1: weight= needs"},
           Case{"c/i " + key, "keys:1: the name must be"},
           Case{"ci short", "must have 16 to 512"},
           Case{"ci " + std::string(513, 'x'), "must have 16 to 512"},
           Case{"ci " + key + "\x01", "visible ASCII"},
           Case{"ci " + key + "\nci " + key + "2", "keys:2: the name \"ci\" appears twice"},
           Case{"a " + key + "\nb " + key, "keys:2: \"b\" has the same key as \"a\""},
       }) {
    const auto parsed = ApiKeys::parse(c.text, "keys");
    REQUIRE(!parsed);
    CHECK_MESSAGE(parsed.error().message.find(c.message) != std::string::npos,
                  parsed.error().message);
    CHECK(parsed.error().message.find(key) == std::string::npos);
  }
}

TEST_CASE("a lock is held by one at a time") {
  const auto folder = temporary();
  const std::string path = folder.path() + "/lock";
  {
    const auto first = FileLock::acquire(path);
    REQUIRE(first);
    const auto second = FileLock::acquire(path);
    REQUIRE(!second);
    CHECK(second.error().code == ErrorCode::kConflict);
    CHECK(second.error().message.find(std::to_string(::getpid())) != std::string::npos);
  }
  CHECK(FileLock::acquire(path));
}

TEST_CASE("folders are made with their parents, and a file in the way is an error") {
  const auto folder = temporary();
  CHECK(make_directories(folder.path() + "/a/b/c", 0700));
  CHECK(mode_of(folder.path() + "/a/b") == 0700);
  CHECK(make_directories(folder.path() + "/a/b/c"));
  REQUIRE(write_file_atomically(folder.path() + "/file", "x"));
  CHECK(!make_directories(folder.path() + "/file"));
  CHECK(!make_directories(folder.path() + "/file/below"));
}

TEST_CASE("a temporary folder goes with its content") {
  std::string path;
  {
    auto folder = temporary();
    path = folder.path();
    REQUIRE(write_file_atomically(path + "/x", "x"));
    const auto moved = std::move(folder);
    CHECK(std::filesystem::exists(moved.path()));
  }
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("the machine has cores, memory and disk") {
  const Machine machine = read_machine();
  CHECK(machine.cores >= 1);
  CHECK(machine.memory_total > Bytes(0));
  CHECK(machine.memory_available <= machine.memory_total);
  CHECK(disk_space("/").value().total > Bytes(0));
  CHECK(!disk_space("/no/such/place"));
  CHECK(!executable_path().empty());
}

}  // namespace penstock
