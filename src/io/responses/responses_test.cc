#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "io/files/files.h"
#include "io/responses/sqlite_responses.h"
#include "io/responses/text_seal.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

class Fixture {
 public:
  Fixture() : folder(TemporaryDirectory::make("responses")) { REQUIRE(folder); }
  std::unique_ptr<ResponseStore> open() {
    auto store = open_sqlite_responses(options());
    REQUIRE_MESSAGE(store, store.error().message);
    return std::move(*store);
  }
  SqliteResponsesOptions options() const {
    SqliteResponsesOptions out{.path = folder->path() + "/responses.db"};
    out.retention_seconds = 100;
    out.bytes_max = bytes_max;
    return out;
  }
  Result<TemporaryDirectory> folder;
  Bytes bytes_max{1 << 20};
};

StoredResponse response(const std::string& id, const std::string& previous = {}) {
  StoredResponse out{.id = id, .owner = "acme", .previous_id = previous, .created = 10};
  out.input = "[1]";
  out.output = "[2]";
  out.body = "{}";
  return out;
}

std::vector<StoredEvent> events(std::uint64_t first, std::uint64_t count) {
  std::vector<StoredEvent> out;
  for (std::uint64_t i = first; i < first + count; ++i)
    out.push_back({i, fmt::format("event {}", i)});
  return out;
}

ResponseEnding ending(const StoredResponse& r, std::uint64_t next) {
  return {r.id + " ended", {{next, "the end"}}};
}

}  // namespace

TEST_CASE("what was put is found by its owner only, and after a restart") {
  Fixture fixture;
  {
    const auto store = fixture.open();
    REQUIRE(store->put(response("resp_a")));
    CHECK_FALSE(store->put(response("resp_a")));
  }
  const auto store = fixture.open();
  const auto found = store->find("acme", "resp_a");
  REQUIRE(found);
  REQUIRE(found->has_value());
  CHECK((*found)->input == "[1]");
  CHECK((*found)->output == "[2]");
  CHECK((*found)->body == "{}");
  CHECK((*found)->created == 10);
  CHECK_FALSE((*found)->running);
  CHECK_FALSE(store->find("other", "resp_a")->has_value());
  CHECK_FALSE(store->find("", "resp_a")->has_value());
  CHECK(store->chain("other", "resp_a")->empty());
  CHECK_FALSE(*store->erase("other", "resp_a"));
  CHECK_FALSE(store->end("other", "resp_a", ending)->has_value());
  CHECK(*store->erase("acme", "resp_a"));
  CHECK_FALSE(*store->erase("acme", "resp_a"));
  CHECK_FALSE(store->find("acme", "resp_a")->has_value());
}

TEST_CASE("a chain is followed from its beginning, and is nothing when a part is missing") {
  Fixture fixture;
  const auto store = fixture.open();
  REQUIRE(store->put(response("a")));
  REQUIRE(store->put(response("b", "a")));
  REQUIRE(store->put(response("c", "b")));
  const auto chain = store->chain("acme", "c");
  REQUIRE(chain);
  REQUIRE(chain->size() == 3);
  CHECK((*chain)[0].id == "a");
  CHECK((*chain)[2].id == "c");
  CHECK(*store->erase("acme", "b"));
  CHECK(store->chain("acme", "c")->empty());
}

TEST_CASE("a running response takes events until it ends, whoever ends it") {
  Fixture fixture;
  const auto store = fixture.open();
  auto one = response("one");
  one.running = true;
  REQUIRE(store->put(one));
  CHECK(*store->append("one", events(0, 3)));
  SUBCASE("by itself") {
    one.output = "[3]";
    one.body = "done";
    CHECK(*store->finish(one, events(3, 1)));
    CHECK(store->find("acme", "one")->value().body == "done");
    CHECK(store->find("acme", "one")->value().output == "[3]");
    CHECK(store->end("acme", "one", ending)->value().body == "done");  // too late
  }
  SUBCASE("from outside") {
    CHECK(store->end("acme", "one", ending)->value().body == "one ended");
    CHECK(store->end("acme", "one", ending)->value().body == "one ended");
    CHECK_FALSE(*store->finish(one, events(3, 1)));
    CHECK(store->events("one", 2, 10)->at(0).text == "the end");
  }
  CHECK_FALSE(*store->append("one", events(4, 1)));
  const auto all = store->events("one", -1, 10);
  REQUIRE(all);
  REQUIRE(all->size() == 4);
  CHECK((*all)[3].sequence == 3);
  CHECK(store->events("one", 1, 1)->at(0).sequence == 2);
  CHECK(*store->erase("acme", "one"));
  CHECK(store->events("one", -1, 10)->empty());
}

TEST_CASE("what ran when the process died is ended at the next start") {
  Fixture fixture;
  {
    const auto store = fixture.open();
    auto running = response("one");
    running.running = true;
    REQUIRE(store->put(running));
    REQUIRE(store->append("one", events(0, 2)));
    REQUIRE(store->put(response("two")));
  }
  const auto store = fixture.open();
  CHECK(*store->end_all(ending) == 1);
  CHECK(store->find("acme", "one")->value().body == "one ended");
  CHECK(store->events("one", 1, 9)->at(0).sequence == 2);
  CHECK(store->find("acme", "two")->value().body == "{}");
  CHECK(*store->end_all(ending) == 0);
}

TEST_CASE("responses expire by age, but not while they run") {
  Fixture fixture;
  const auto store = fixture.open();
  REQUIRE(store->put(response("old")));
  auto young = response("young");
  young.created = 50;
  REQUIRE(store->put(young));
  auto running = response("running");
  running.running = true;
  REQUIRE(store->put(running));
  REQUIRE(store->expire(109));
  CHECK(store->find("acme", "old")->has_value());
  REQUIRE(store->expire(110));
  CHECK_FALSE(store->find("acme", "old")->has_value());
  CHECK(store->find("acme", "young")->has_value());
  CHECK(store->find("acme", "running")->has_value());
}

TEST_CASE("the file stays within its limit: the oldest go, and what is too large is refused") {
  Fixture fixture;
  const auto store = fixture.open();
  for (int i = 0; i < 100; ++i) {
    auto r = response(fmt::format("r{}", i));
    r.created = i;
    r.input = std::string(50000, 'x');
    REQUIRE(store->put(r));
  }
  CHECK_FALSE(store->find("acme", "r0")->has_value());
  CHECK(store->find("acme", "r99")->has_value());
  struct stat file{};
  REQUIRE(stat((fixture.folder->path() + "/responses.db").c_str(), &file) == 0);
  CHECK(file.st_size <= 1 << 20);
  CHECK((file.st_mode & 077) == 0);
  auto large = response("large");
  large.input = std::string(2 << 20, 'x');
  const Status refused = store->put(large);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOverloaded);
  CHECK(store->find("acme", "r99")->has_value());  // nothing else was lost
}

TEST_CASE("a file that is no database, or not ours, is refused with its name") {
  Fixture fixture;
  std::ofstream(fixture.options().path) << std::string(8192, 'z');
  const auto store = open_sqlite_responses(fixture.options());
  REQUIRE_FALSE(store);
  CHECK(store.error().code == ErrorCode::kDataLoss);
  CHECK(store.error().message.find(fixture.options().path) != std::string::npos);
  auto nowhere = fixture.options();
  nowhere.path = fixture.folder->path() + "/no/such/folder.db";
  CHECK(open_sqlite_responses(nowhere).error().code == ErrorCode::kIo);
}

TEST_CASE("sealed text opens for the same purpose, owner and secret only") {
  std::array<std::uint8_t, 32> secret{1};
  const auto seal = TextSeal::make(secret);
  REQUIRE(seal);
  const std::string text = "let me see\n\xc3\xa9";
  const auto sealed = seal->seal("reasoning", "acme", text);
  CHECK(sealed != seal->seal("reasoning", "acme", text));  // a nonce of its own each time
  CHECK(sealed.find(text) == std::string::npos);
  CHECK(seal->open("reasoning", "acme", sealed) == text);
  CHECK_FALSE(seal->open("compaction", "acme", sealed));
  CHECK_FALSE(seal->open("reasoning", "other", sealed));
  CHECK_FALSE(seal->open("reasoning", "", sealed));
  secret[0] = 2;
  CHECK_FALSE(TextSeal::make(secret)->open("reasoning", "acme", sealed));
  CHECK(seal->open("r", "", seal->seal("r", "", "")) == "");
}

TEST_CASE("sealed text that was cut or changed anywhere does not open") {
  const std::array<std::uint8_t, 32> secret{1};
  const auto seal = TextSeal::make(secret);
  const auto sealed = seal->seal("reasoning", "acme", "some text of a model");
  for (std::size_t n = 0; n < sealed.size(); ++n) {
    CHECK_FALSE(seal->open("reasoning", "acme", sealed.substr(0, n)));
    auto changed = sealed;
    changed[n] = changed[n] == 'A' ? 'B' : 'A';
    CHECK_FALSE(seal->open("reasoning", "acme", changed));
  }
  CHECK_FALSE(seal->open("reasoning", "acme", sealed + "A"));
  CHECK_FALSE(seal->open("reasoning", "acme", "!"));
}

}  // namespace penstock
