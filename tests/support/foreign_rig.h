// ForeignRig: a gateway of engines of others on virtual time, its engines scripts
// (fake_upstream.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "service/foreign/foreign_gateway.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/fake_upstream.h"
#include "tests/support/virtual_clock.h"

#include <doctest/doctest.h>

namespace penstock::foreign::testing {

using namespace std::chrono_literals;
using dialects::EngineKind;
using dialects::WireApi;
using penstock::testing::Answered;
using penstock::testing::FakeExchange;
using penstock::testing::FakeUpstream;
using penstock::testing::UpstreamAnswer;
using End = UpstreamAnswer::End;

inline constexpr auto kSse = "text/event-stream; charset=utf-8";
inline const std::string kChunk =
    R"(data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]})"
    "\n\n";
inline const std::string kStop =
    R"(data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})"
    "\n\n";
inline const std::string kUsage =
    R"(data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}})"
    "\n\n";
inline const std::string kDone = "data: [DONE]\n\n";

inline UpstreamAnswer stream(std::vector<std::string> pieces, End end = End::kWhole) {
  return {200, kSse, std::move(pieces), end};
}
inline UpstreamAnswer whole(std::string body, int status = 200) {
  return {status, "application/json", {std::move(body)}};
}

// A request under way: what it was answered, and its record.
struct Asked {
  std::shared_ptr<Answered> answered = std::make_shared<Answered>();
  RequestRecord record;
  bool over = false;
};

struct Rig {
  explicit Rig(std::vector<EngineKind> kinds, std::vector<EngineRole> roles = {},
               PrefixSource* prefixes = nullptr, bool mooncake = false)
      : set(clock, [this](std::string text) { told.push_back(std::move(text)); }, prefixes) {
    for (const EngineKind kind : kinds) {
      const std::size_t i = servers.size();
      const EngineRole role = i < roles.size() ? roles[i] : EngineRole::kMixed;
      auto server = std::make_unique<FakeUpstream>(clock);
      servers.push_back(server.get());
      std::unique_ptr<FakeUpstream> bootstrap;
      if (mooncake && role == EngineRole::kPrefill) {
        bootstrap = std::make_unique<FakeUpstream>(clock);
        bootstrap->get["/query"] = {200, R"({"0":{"engine_id":"id-)" + std::to_string(i) + "\"}}"};
      }
      bootstraps.push_back(bootstrap.get());
      set.add({kind, "e" + std::to_string(servers.size() - 1), "http://e", "secret", role, "p-host",
               8998, WorkerId(static_cast<std::uint32_t>(i)), mooncake},
              std::move(server), std::move(bootstrap));
    }
    set.start();
    clock.run();
  }
  ~Rig() {
    set.stop();
    clock.advance(20min);
    CHECK(gate.running() == 0);
    for (const auto& engine : set.engines())
      CHECK(engine->running == 0);
    for (const FakeUpstream* server : servers)
      CHECK(server->open == 0);
  }

  // Begins a request and runs what is due.
  Asked& ask(std::string body, WireApi api = WireApi::kChat, std::vector<HttpHeader> headers = {}) {
    asked.push_back(std::make_unique<Asked>());
    Asked& it = *asked.back();
    it.record.request_id = "req-1";
    HttpRequest request;
    request.method = "POST";
    request.path = dialects::path_of(api);
    request.headers = std::move(headers);
    request.body = std::move(body);
    request.received_at = clock.now();
    auto exchange = std::make_unique<FakeExchange>(std::move(request), it.answered);
    gate.start(run(std::move(exchange), it, api));
    clock.run();
    return it;
  }
  Task<void> run(std::unique_ptr<HttpExchange> exchange, Asked& it, WireApi api) {
    co_await gateway.relay(*exchange, it.record, api);
    it.over = true;
  }
  FakeUpstream& server(std::size_t i) { return *servers[i]; }

  penstock::testing::VirtualClock clock;
  std::vector<FakeUpstream*> servers;
  std::vector<FakeUpstream*> bootstraps;  // of Mooncake prefill engines; null: of others
  std::vector<std::string> told;
  EngineSet set;
  ForeignGateway gateway{
      clock, set, {}, {{"alias", "m"}, {"nowhere", "x"}}, Rng(1), [this] {
        return 1'764'547'200.0 +
               std::chrono::duration<double>(clock.now().time_since_epoch()).count();
      }};
  Gate gate;
  std::vector<std::unique_ptr<Asked>> asked;
};

inline std::string header_of(const UpstreamRequest& request, std::string_view name) {
  std::string all;
  for (const HttpHeader& h : request.headers) {
    if (h.name == name) all += (all.empty() ? "" : ", ") + h.value;
  }
  return all;
}

}  // namespace penstock::foreign::testing
