// The contract of BlockStore on a real Ceph: PENSTOCK_CEPH_CONF names its ceph.conf
// (tools/ceph_dev.sh up), PENSTOCK_CEPH_USER and _KEYRING who to be there (client.admin). Without
// it only what needs no cluster is tested.
#include "io/rados/rados_store.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/support/block_store_contract.h"

#include <doctest/doctest.h>

namespace penstock::rados {
namespace {

using testing::store_now;
using testing::StoreUser;

const char* cluster() {
  const char* conf = std::getenv("PENSTOCK_CEPH_CONF");
  if (conf == nullptr) MESSAGE("skipped: no cluster; PENSTOCK_CEPH_CONF names none");
  return conf;
}

// A store that nobody has used.
RadosStoreOptions fresh_options(const char* conf) {
  RadosStoreOptions options;
  options.conf = conf;
  if (const char* user = std::getenv("PENSTOCK_CEPH_USER")) options.user = user;
  if (const char* keyring = std::getenv("PENSTOCK_CEPH_KEYRING")) options.keyring = keyring;
  options.name_space = "penstock-test-" + std::to_string(::getpid()) + "-" +
                       std::to_string(store_now().time_since_epoch().count());
  return options;
}

std::unique_ptr<BlockStore> open_connected(const RadosStoreOptions& options) {
  auto store = open_rados_store(options);
  REQUIRE_MESSAGE(store, (store ? "" : store.error().message));
  const Instant until = store_now() + std::chrono::seconds(30);
  while ((*store)->stats().state != "ok" && store_now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE((*store)->stats().state == "ok");
  return std::move(*store);
}

TEST_CASE("a store on RADOS says which option is wrong") {
  RadosStoreOptions options;
  const auto store = open_rados_store(options);
  REQUIRE(!store);
  if (store.error().code == ErrorCode::kUnsupported ||
      store.error().code == ErrorCode::kUnavailable) {
    CHECK(store.error().message.find("librados") != std::string::npos);
    return;
  }
  CHECK(store.error().message.find("ceph.conf") != std::string::npos);
  options.conf = "/nowhere/ceph.conf";
  options.user = "admin";
  CHECK(open_rados_store(options).error().message.find("client.NAME") != std::string::npos);
  options.user = "client.admin";
  options.name_space = "";
  CHECK(open_rados_store(options).error().message.find("name space") != std::string::npos);
}

TEST_CASE("a cluster that is not there delays nobody and says why") {
  RadosStoreOptions options;
  options.conf = "/nowhere/ceph.conf";
  auto store = open_rados_store(options);
  if (!store) return;  // not built in
  StoreUser user(std::move(*store));
  const Instant start = store_now();
  CHECK(user.get({StorePool::kExtents, "x"}, 10).first == MissReason::kTierOff);
  CHECK(user.put({StorePool::kExtents, "x"}, testing::random_payload(1, 10)) ==
        MissReason::kTierOff);
  CHECK(user.touch({StorePool::kExtents, "x"}, 1) == MissReason::kTierOff);
  CHECK(user.add_to_manifest({}, {{StorePool::kSmall, "x"}}) == MissReason::kTierOff);
  CHECK(store_now() - start < std::chrono::seconds(5));
  while (user.store().stats().state == "connecting" &&
         store_now() - start < std::chrono::seconds(10))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(user.store().stats().state.find("/nowhere/ceph.conf") != std::string::npos);
}

TEST_CASE("the contract of a block store") {
  const char* conf = cluster();
  if (conf == nullptr) return;
  const RadosStoreOptions options = fresh_options(conf);
  testing::check_block_store([&] { return open_connected(options); });
}

}  // namespace
}  // namespace penstock::rados
