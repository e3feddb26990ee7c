// A device that does not answer, for a while or for ever, and one that is slow.
#include <doctest/doctest.h>
#include <chrono>

#include "io/disk/disk_tier_testing.h"

namespace penstock::disk {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void pass(TierHarness& h, Duration time) {
  for (; time > Duration(); time -= milliseconds(500)) {
    h.now.now += milliseconds(500);
    h.poll();
    REQUIRE(h.removals.empty());
  }
}

struct Asked {
  AlignedBuffer memory;
  int answers = 0;
  MissReason reason = MissReason::kNone;
};

std::unique_ptr<Asked> ask(TierHarness& h, const TestBlock& block) {
  auto asked = std::make_unique<Asked>();
  asked->memory = AlignedBuffer(block.payload.span().size());
  h.tier->read({block.info.name, asked->memory.span(),
                [it = asked.get()](MissReason reason, const BlockInfo&) {
                  ++it->answers;
                  it->reason = reason;
                }});
  return asked;
}

TEST_CASE("a hung device: one alarm, nobody waits anew, and the tier comes back with its blocks") {
  TierHarness h(1);
  const TestBlock stored = test_block(1, 0, 1);
  const TestBlock written = test_block(1, 1, 1);
  REQUIRE(h.write(stored) == MissReason::kNone);
  h.settle();
  h.disk->hung = true;
  const auto early = ask(h, stored);
  std::optional<MissReason> write_end;
  h.tier->write(
      {written.info, written.payload.span(), [&](MissReason reason) { write_end = reason; }});
  pass(h, seconds(5));
  CHECK(h.tier->contains(stored.info.name));
  pass(h, seconds(1));
  // Out of service; what is under way stays the device's.
  CHECK(h.alarms() == 1);
  CHECK(h.noticed("has not answered"));
  CHECK_FALSE(h.tier->stats().in_service);
  CHECK(h.tier->stats().state.find("has not answered") != std::string::npos);
  CHECK_FALSE(h.tier->contains(stored.info.name));
  CHECK_FALSE(h.tier->size_of(stored.info.name).has_value());
  CHECK(early->answers == 0);
  CHECK_FALSE(write_end.has_value());
  // New ones are refused at once.
  CHECK(h.read(stored) == MissReason::kTierOff);
  CHECK(h.write(test_block(1, 2, 1)) == MissReason::kTierOff);
  // What is removed meanwhile stays removed.
  const TestBlock other = test_block(2, 0, 1);
  h.tier->remove(other.info.name, MissReason::kRemoved);
  pass(h, seconds(600));
  CHECK(h.alarms() == 1);
  CHECK(early->answers == 0);
  CHECK(h.tier->stats().blocks == 1);
  // It answers: those who waited hear of it once, and after the quiet time it serves again.
  h.disk->hung = false;
  h.until([&] { return early->answers > 0 && write_end.has_value(); });
  CHECK(early->answers == 1);
  CHECK(early->reason == MissReason::kNone);
  CHECK(*write_end == MissReason::kNone);
  CHECK_FALSE(h.tier->contains(stored.info.name));
  pass(h, seconds(31));
  CHECK(h.tier->stats().in_service);
  CHECK(h.tier->stats().state == "ok");
  CHECK(h.read(stored) == MissReason::kNone);
  CHECK(h.read(written) == MissReason::kNone);
  CHECK(h.alarms() == 1);
  // And hangs once more: another alarm.
  h.disk->hung = true;
  const auto late = ask(h, stored);
  pass(h, seconds(7));
  CHECK(h.alarms() == 2);
  h.disk->hung = false;
  h.until([&] { return late->answers == 1; });
}

TEST_CASE("a process that stood still does not blame the device") {
  TierHarness h(1);
  REQUIRE(h.write(test_block(1, 0, 1)) == MissReason::kNone);
  h.poll();
  h.disk->hung = true;
  const auto asked = ask(h, test_block(1, 0, 1));
  h.now.now += seconds(3600);
  h.poll();
  CHECK(h.alarms() == 0);
  h.disk->hung = false;
  h.until([&] { return asked->answers == 1; });
}

TEST_CASE("stopping does not wait for a hung device; what is left is told and its memory kept") {
  TierHarness h(1);
  const TestBlock block = test_block(1, 0, 1);
  REQUIRE(h.write(block) == MissReason::kNone);
  h.disk->hung = true;
  const auto asked = ask(h, block);
  const TestBlock next = test_block(1, 1, 1);
  h.tier->write({next.info, next.payload.span(), [](MissReason) { FAIL("delivered"); }});
  h.tier.reset();
  CHECK(h.noticed("2 operations that the device has not answered"));
  CHECK(asked->answers == 0);
  // The device answers at last, into memory that is still there.
  h.disk->hung = false;
  h.io->crash();
}

TEST_CASE("a device that hangs at the start is an error") {
  TierHarness h(1);
  REQUIRE(h.write(test_block(1, 0, 1)) == MissReason::kNone);
  h.tier.reset();
  h.disk->hung = true;
  const auto opened = DiskTier::open(h.options, std::make_unique<MemorySegmentIo>(h.disk), h.now);
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error().code == ErrorCode::kIo);
  CHECK(opened.error().message.find("has not answered for 5 s") != std::string::npos);
}

TEST_CASE("a slow device is one warning") {
  TierHarness h(1);
  const TestBlock block = test_block(1, 0, 1);
  REQUIRE(h.write(block) == MissReason::kNone);
  for (int i = 0; i < 60; ++i) {
    h.disk->hung = true;
    const auto asked = ask(h, block);
    pass(h, seconds(2));
    h.disk->hung = false;
    h.until([&] { return asked->answers == 1; });
  }
  CHECK(h.alarms() == 0);
  CHECK(h.tier->stats().in_service);
  CHECK(std::ranges::count_if(h.notices, [](const auto& notice) {
          return notice.second.find("slow") != std::string::npos;
        }) == 1);
}

}  // namespace
}  // namespace penstock::disk
