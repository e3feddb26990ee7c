// A gateway shard with everything round it played by the test. For tests only.
#pragma once

#include <array>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "service/gateway/gateway.h"
#include "tests/support/fake_engines.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/virtual_clock.h"

#include <doctest/doctest.h>

namespace penstock::gateway {

using testing::Answered;
using testing::FakeEngines;
using testing::FakeExchange;
using testing::VirtualClock;

// Runs work at once; the completion comes through the clock, as from a real pool.
class InlinePool final : public ComputePool {
 public:
  bool submit(std::function<void()> work) override {
    work();
    return true;
  }
};

class Recorder final : public RequestObserver {
 public:
  void request_started() override { ++started; }
  void request_finished(const RequestRecord& record) override { records.push_back(record); }
  int started = 0;
  std::vector<RequestRecord> records;
};

inline std::shared_ptr<const Tokenizer> nano_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    std::ifstream file("models/nano/tokenizer.json");
    std::stringstream text;
    text << file.rdbuf();
    auto loaded = Tokenizer::from_json(text.str());
    REQUIRE(loaded);
    return std::shared_ptr<const Tokenizer>(std::move(*loaded));
  }();
  return tokenizer;
}

// A gateway shard with everything round it played by the test.
struct Rig {
  VirtualClock clock;
  FakeEngines engines{clock};
  InlinePool pool;
  std::array<std::uint8_t, 32> secret{};
  PromptEncoder encoder{clock, pool, secret};
  Recorder recorder;
  ModelCatalog catalog;
  GatewayContext context{clock,   engines,
                         encoder, recorder,
                         catalog, {},
                         Rng(1),  [] { return std::int64_t{1700000000}; },
                         {},      [] { return "m 1\n"; }};
  Gateway gateway{context};
  Gate gate;

  Rig() {
    auto encoding = prompt::detect_chat_encoding(
        [](std::string_view token) { return nano_tokenizer()->token_id(token).has_value(); });
    REQUIRE(encoding);
    REQUIRE(catalog.add({"nano", nano_tokenizer(), std::move(*encoding), 1}));
    REQUIRE(catalog.add_alias("chat", "nano"));
    engines.add_worker(1, "nano", 4096);
  }

  std::shared_ptr<Answered> send(std::string method, std::string path, std::string body = {},
                                 std::vector<HttpHeader> headers = {}) {
    HttpRequest request;
    request.method = std::move(method);
    request.path = std::move(path);
    request.body = std::move(body);
    request.headers = std::move(headers);
    if (request.method == "POST" && request.header("content-type").empty()) {
      request.headers.push_back({"Content-Type", "application/json"});
    }
    request.received_at = clock.now();
    auto answered = std::make_shared<Answered>();
    gate.start(gateway.handle(std::make_unique<FakeExchange>(std::move(request), answered)));
    clock.run();
    return answered;
  }
  std::shared_ptr<Answered> chat(std::string extra = {}) {
    return send("POST", "/v1/chat/completions",
                R"({"model":"nano","messages":[{"role":"user","content":"Hi"}])" + extra + "}");
  }
  void emit_text(std::string_view text, std::optional<FinishReason> finish = {},
                 std::uint32_t choice = 0) {
    std::vector<TokenId> ids;
    REQUIRE(nano_tokenizer()->encode(text, ids));
    engines.emit(ids, finish, choice);
    clock.run();
  }
  const RequestRecord& last() { return recorder.records.back(); }
};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace penstock::gateway
