#include "base/task.h"

#include <memory>
#include <string>

#include <doctest/doctest.h>

namespace penstock {
namespace {

Task<int> add(OneShot<int>& a, OneShot<int>& b) {
  const int x = co_await a;
  const int y = co_await b;
  co_return x + y;
}

Task<void> store(Task<int> task, int* out) {
  *out = co_await std::move(task);
}

Task<int> one() {
  co_return 1;
}

Task<void> loop(int n, int* out) {
  for (int i = 0; i < n; ++i)
    *out += co_await one();
}

Task<void> hold(std::shared_ptr<int> owned, OneShot<int>& never) {
  co_await never;
  *owned = 1;
}

}  // namespace

TEST_CASE("a task resumes its awaiter with the value, whichever side comes first") {
  OneShot<int> a;
  OneShot<int> b;
  Gate gate;
  int out = 0;
  b.set(2);
  gate.start(store(add(a, b), &out));
  CHECK(gate.running() == 1);
  CHECK(out == 0);
  a.set(40);
  CHECK(out == 42);
  CHECK(gate.running() == 0);
  a.set(7);  // ignored
}

TEST_CASE("a million awaits need no stack") {
  Gate gate;
  int out = 0;
  gate.start(loop(1'000'000, &out));
  CHECK(out == 1'000'000);
}

TEST_CASE("destroying an unstarted or suspended task frees what it owns") {
  OneShot<int> never;
  auto owned = std::make_shared<int>(0);
  {
    Task<void> task = hold(owned, never);
    CHECK(owned.use_count() == 2);
  }
  CHECK(owned.use_count() == 1);
}

TEST_CASE("a gate tells when it has drained") {
  OneShot<int> a;
  OneShot<int> b;
  Gate gate;
  Gate outer;
  int out = 0;
  bool drained = false;
  gate.start(store(add(a, b), &out));
  outer.start([](Gate& inner, bool* flag) -> Task<void> {
    co_await inner.drained();
    *flag = true;
  }(gate, &drained));
  a.set(1);
  CHECK(!drained);
  b.set(1);
  CHECK(drained);
}

}  // namespace penstock
