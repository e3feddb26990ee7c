#include "io/kv/name_lookup.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <condition_variable>
#include <mutex>

namespace penstock::kv {
namespace {

std::vector<NameLookup::Answer> wait_for(NameLookup& lookup, std::size_t count) {
  std::vector<NameLookup::Answer> answers;
  while (answers.size() < count) {
    pollfd ready{lookup.event_fd(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 120'000) == 1);
    for (NameLookup::Answer& answer : lookup.take())
      answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace

TEST_CASE("questions are answered in order, with what the resolver says then") {
  NameLookup lookup([](const std::string& name) -> Result<sockets::TcpAddress> {
    if (name == "nobody:1") return fail(ErrorCode::kInvalidArgument, "unknown");
    return sockets::resolve(name);
  });
  CHECK(lookup.take().empty());
  lookup.ask(7, "127.0.0.1:80");
  lookup.ask(8, "nobody:1");
  const auto answers = wait_for(lookup, 2);
  CHECK(answers[0].number == 7);
  REQUIRE(answers[0].address);
  CHECK(answers[0].address->text == "127.0.0.1:80");
  CHECK(answers[1].number == 8);
  CHECK_FALSE(answers[1].address);
  pollfd ready{lookup.event_fd(), POLLIN, 0};
  CHECK(::poll(&ready, 1, 0) == 0);
}

TEST_CASE("the object goes while its resolver hangs") {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool asked = false, open = false, left = false;
  };
  const auto gate = std::make_shared<Gate>();
  {
    NameLookup lookup([gate](const std::string&) -> Result<sockets::TcpAddress> {
      std::unique_lock lock(gate->mutex);
      gate->asked = true;
      gate->changed.notify_all();
      gate->changed.wait(lock, [&] { return gate->open; });
      gate->left = true;
      gate->changed.notify_all();
      return fail(ErrorCode::kIo, "late");
    });
    lookup.ask(1, "slow:1");
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [&] { return gate->asked; });
  }
  std::unique_lock lock(gate->mutex);
  CHECK_FALSE(gate->left);
  gate->open = true;
  gate->changed.notify_all();
  gate->changed.wait(lock, [&] { return gate->left; });
}

}  // namespace penstock::kv
