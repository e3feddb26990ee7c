// Which rank of which engine gets a prompt: caches, trust, loads, ranks, engines that come and go.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/foreign_rig.h"

#include <doctest/doctest.h>

namespace penstock::foreign {

using namespace testing;

namespace {

// What ranks hold is what the test says.
class SaidPrefixes final : public PrefixSource {
 public:
  const kvcache::RoutingChain& chain() const override { return chain_; }
  void has_ranks(WorkerId engine, std::uint32_t ranks) override { ranks_of[engine] = ranks; }
  void forget(WorkerId engine) override { ranks_of.erase(engine); }
  bool has_events(WorkerId) const override { return events; }
  std::vector<kvcache::RankMatch> match(const PromptName& prompt) const override {
    last = prompt;
    return held;
  }
  double trust(kvcache::RankOfWorker) const override { return trusted; }
  void sent(kvcache::RankOfWorker rank, const PromptName&) override { sent_to.push_back(rank); }
  void observed(kvcache::RankOfWorker rank, const PromptName&, const Observed& what) override {
    seen.push_back({rank, what});
  }

  bool events = false;
  double trusted = 1;
  std::vector<kvcache::RankMatch> held;
  mutable PromptName last;
  std::map<WorkerId, std::uint32_t> ranks_of;
  std::vector<kvcache::RankOfWorker> sent_to;
  std::vector<std::pair<kvcache::RankOfWorker, Observed>> seen;

 private:
  kvcache::RoutingChain chain_{7};
};

const std::string kLong(8000, 'x');  // 2,000 tokens by their bytes
const std::string kBody =
    R"({"model":"m","messages":[{"role":"user","content":")" + kLong + "\"}]}";
const std::string kReply =
    R"({"usage":{"prompt_tokens":1000,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":480}}})";

kvcache::RankMatch match(std::uint32_t engine, std::uint32_t rank, std::uint32_t tokens) {
  return {{WorkerId(engine), rank}, tokens, tokens, tokens};
}

}  // namespace

TEST_CASE("pick: the engine that holds the prompt gets it, if it is trusted and not overloaded") {
  SaidPrefixes prefixes;
  Rig rig({EngineKind::kVllm, EngineKind::kSglang, EngineKind::kVllm}, {}, &prefixes);
  for (std::uint32_t engine = 0; engine < 3; ++engine) {
    CHECK(prefixes.ranks_of.at(WorkerId(engine)) == 1);
    prefixes.held = {match(engine, 0, 1600)};
    rig.server(engine).answers = {whole(kReply)};
    const Asked& it = rig.ask(kBody);
    CHECK(it.answered->status == 200);
    CHECK(rig.server(engine).posts.size() == 1);
    CHECK(prefixes.sent_to.back() == kvcache::RankOfWorker{WorkerId(engine), 0});
    REQUIRE(prefixes.seen.size() == engine + 1);
    CHECK(prefixes.seen.back().second.predicted == 1600);
    CHECK(prefixes.seen.back().second.cached == 480);
    CHECK(prefixes.seen.back().second.prompt == 1000);
  }
  CHECK(prefixes.last.text_tokens ==
        prefixes.last.text.size() * 16 + prefixes.last.text_tokens % 16);
  // Of two the one that holds more; what is not on the device counts less.
  const PromptName name{{1}, {}, 2000, 0};
  const Wanted wanted{"m", WireApi::kChat, "head", {}, {}, &name};
  prefixes.held = {
      {{WorkerId(0), 0}, 0, 0, 1600}, {{WorkerId(1), 0}, 0, 1600, 1600}, match(2, 0, 1100)};
  CHECK(rig.set.pick(wanted).id().worker == WorkerId(1));
  prefixes.held[2] = match(2, 0, 1500);
  CHECK(rig.set.pick(wanted).id().worker == WorkerId(2));
  // A rank whose predictions don't come true is none that holds it.
  prefixes.trusted = 0;
  gateway::LegExplanation told;
  rig.set.pick(wanted, &told);
  CHECK(told.best.size() == 3);
  CHECK(told.best[0].compute_seconds == doctest::Approx(told.best[1].compute_seconds));
  // Load outweighs a hit in the end, and not before.
  prefixes.trusted = 1;
  for (const int running : {1, 30}) {
    rig.set.engines()[2]->loads = {{0, running, 0, std::nullopt}};
    CHECK((rig.set.pick(wanted, &told).id().worker == WorkerId(2)) == (running == 1));
  }
  CHECK(told.reason == routing::to_string(routing::PlaceReason::kPrefix));
  CHECK(told.chosen == "e1");
}

TEST_CASE("pick: no cached tokens in an answer say nothing; a retry is observed where it ran") {
  SaidPrefixes prefixes;
  prefixes.held = {match(0, 0, 1600)};
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {}, &prefixes);
  rig.server(0).answers = {whole(R"({"usage":{"prompt_tokens":9,"completion_tokens":1}})"),
                           whole("", 500)};
  rig.server(1).answers = {whole(kReply)};
  rig.ask(kBody);
  CHECK(prefixes.seen.empty());
  rig.ask(kBody);
  REQUIRE(prefixes.seen.size() == 1);
  CHECK(prefixes.seen[0].first.worker == WorkerId(1));
  CHECK(prefixes.seen[0].second.predicted == 0);
  // What computes nothing is not looked up.
  const auto sent = prefixes.sent_to.size();
  rig.server(0).answers = rig.server(1).answers = {whole("{}")};
  rig.ask(kBody, WireApi::kTokenize);
  CHECK(prefixes.sent_to.size() == sent);
}

TEST_CASE("pick: ranks have their own loads and caches, and the request names the one chosen") {
  SaidPrefixes prefixes;
  Rig rig({EngineKind::kVllm, EngineKind::kSglang}, {}, &prefixes);
  rig.server(0).get["/metrics"] = {200,
                                   "vllm:num_requests_running{engine=\"0\"} 9\n"
                                   "vllm:num_requests_running{engine=\"1\"} 0\n"};
  rig.server(1).get["/v1/loads?include=core"] = {
      200,
      R"({"loads":[{"dp_rank":0,"num_running_reqs":9},{"dp_rank":1,"num_running_reqs":9},{"dp_rank":2,"num_running_reqs":9}]})"};
  rig.clock.advance(1100ms);
  CHECK(prefixes.ranks_of.at(WorkerId(0)) == 2);
  CHECK(prefixes.ranks_of.at(WorkerId(1)) == 3);
  rig.server(0).answers = {stream({kChunk}, End::kHang), whole("{}")};
  Asked& running = rig.ask(R"({"model":"m","stream":true,"messages":[1]})");
  CHECK(header_of(rig.server(0).posts.at(0), "x-data-parallel-rank") == "1");
  CHECK(running.record.placement == "e0/1 (vllm)");
  CHECK(rig.set.engines()[0]->load(1) == 1);
  CHECK(rig.set.engines()[0]->load(0) == 9);
  prefixes.held = {match(1, 2, 1900)};
  rig.server(1).answers = {whole(kReply), whole("{}"), whole("{}")};
  rig.ask(kBody);
  CHECK(header_of(rig.server(1).posts.at(0), "x-data-parallel-rank") == "2");
  // SGLang's Responses ignore the header, so nothing is promised; a client's own goes nowhere.
  prefixes.held.clear();
  rig.set.engines()[0]->loads = {{0, 900, 0, std::nullopt}, {1, 900, 0, std::nullopt}};
  rig.ask(R"({"model":"m","input":"x"})", WireApi::kResponses, {{"x-data-parallel-rank", "0"}});
  CHECK(header_of(rig.server(1).posts.at(1), "x-data-parallel-rank").empty());
  rig.ask(R"({"model":"m","messages":[1]})", WireApi::kMessages);
  CHECK_FALSE(header_of(rig.server(1).posts.at(2), "x-data-parallel-rank").empty());
  running.answered->disconnect();
}

TEST_CASE("pick: prompts of engines with events are known by the engine's own token ids") {
  SaidPrefixes prefixes;
  prefixes.events = true;
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {}, &prefixes);
  const auto ask = [&](const std::string& rendered, std::string body, WireApi api) {
    for (auto* server : rig.servers) {
      server->posts.clear();
      server->answers = {whole("{}")};
    }
    rig.server(0).answers.push_front(whole(rendered));
    rig.ask(std::move(body), api);
    return prefixes.last;
  };
  std::string ids = "1";
  for (int i = 2; i <= 40; ++i)
    ids += "," + std::to_string(i);
  const auto named =
      ask(R"({"token_ids":[)" + ids + "]}", R"({"model":"alias","messages":[1]})", WireApi::kChat);
  CHECK(named.id_count == 40);
  CHECK(named.ids.size() == 2);
  CHECK(rig.server(0).posts.at(0).target == "/v1/chat/completions/render");
  CHECK(rig.server(0).posts[0].body == R"({"model":"m","messages":[1]})");
  CHECK(header_of(rig.server(0).posts[0], "authorization") == "Bearer secret");
  // Ids that the client gives need no question, and are the same prompt.
  rig.server(0).answers.clear();
  const auto given = ask("", R"({"model":"m","prompt":[)" + ids + "]}", WireApi::kCompletion);
  CHECK(given.ids == named.ids);
  CHECK(rig.server(0).posts.size() + rig.server(1).posts.size() == 1);
  // A salt is another prompt.
  const auto salted = ask(R"({"token_ids":[)" + ids + "]}",
                          R"({"model":"m","messages":[1],"cache_salt":"s"})", WireApi::kChat);
  CHECK(salted.ids.size() == 2);
  CHECK(salted.ids != named.ids);
  // An engine without the route is told of aloud, once, and the request goes on.
  const auto told = rig.told.size();
  for (int i = 0; i < 2; ++i)
    CHECK(ask("[]", R"({"model":"m","messages":[1]})", WireApi::kChat).ids.empty());
  CHECK(rig.told.size() == told + 1);
  CHECK(rig.asked.back()->answered->status == 200);
}

TEST_CASE("pick: SGLang's chats are known by its /tokenize, as long as it computes what it says") {
  SaidPrefixes prefixes;
  prefixes.events = true;
  // The second one only makes it a choice.
  Rig rig({EngineKind::kSglang, EngineKind::kLlamaCpp}, {}, &prefixes);
  std::string ids = "1";
  for (int i = 2; i <= 40; ++i)
    ids += "," + std::to_string(i);
  // The ids that the pick had, of an engine that says 40 and reports so many.
  const auto ask = [&](std::string body, int reports, WireApi api = WireApi::kChat) {
    const std::string reply =
        R"({"usage":{"prompt_tokens":)" + std::to_string(reports) + R"(,"completion_tokens":1}})";
    for (auto* server : rig.servers) {
      server->posts.clear();
      server->answers = {whole(reply), whole(reply)};
    }
    rig.server(0).answers.push_front(whole(R"({"tokens":[)" + ids + R"(],"count":40})"));
    CHECK(rig.ask(std::move(body), api).answered->status == 200);
    return prefixes.last.id_count;
  };
  const std::string chat = R"({"model":"alias","messages":[1]})";
  CHECK(ask(chat, 40) == 40);
  CHECK(rig.server(0).posts.at(0).target == "/tokenize");
  CHECK(rig.server(0).posts[0].body == R"({"model":"m","messages":[1]})");
  CHECK(ask(R"({"model":"m","prompt":"text"})", 40, WireApi::kCompletion) == 40);
  CHECK(rig.server(0).posts.at(0).target == "/tokenize");
  // Its events don't say media and salts, so ids would find another prompt's blocks.
  CHECK(ask(R"({"model":"m","messages":[1],"cache_salt":"s"})", 40) == 0);
  CHECK(
      ask(R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]})",
          40) == 0);
  // One that leaves tools out of its account is not asked for them again.
  const auto told = rig.told.size();
  const std::string tools = R"({"model":"m","messages":[1],"tools":[{"type":"function"}]})";
  CHECK(ask(tools, 90) == 40);
  CHECK(rig.told.size() == told + 1);
  CHECK(rig.told.back().contains("says 40 tokens of a prompt with tools and computes 90"));
  CHECK(ask(tools, 90) == 0);
  CHECK(ask(chat, 40) == 40);
  CHECK(rig.told.size() == told + 1);
}

TEST_CASE("pick: placements are explained, with every candidate and its cost") {
  SaidPrefixes prefixes;
  prefixes.held = {match(0, 0, 1600)};
  std::vector<gateway::PlacementExplanation> kept;
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {}, &prefixes);
  rig.gateway.explain_with([&](gateway::PlacementExplanation e) { kept.push_back(std::move(e)); });
  rig.server(0).answers = {whole("{}")};
  rig.ask(kBody);
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].request_id == "req-1");
  CHECK(kept[0].tokens > 2000);
  CHECK(kept[0].cached_tokens > 1500);
  CHECK(kept[0].summary == "e0 (vllm)");
  REQUIRE(kept[0].prefill.has_value());
  CHECK(kept[0].prefill->chosen == "e0");
  CHECK(kept[0].prefill->best.size() == 2);
  CHECK(kept[0].prefill->best[0].compute_seconds < kept[0].prefill->best[1].compute_seconds);
}

TEST_CASE("engines: SGLang servers that don't fit their role are not used, and it is said why") {
  struct Case {
    EngineRole role;
    std::string info;
    bool good;
    std::string_view says;
  };
  const std::string prefill =
      R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":4,)";
  for (const Case& c :
       {Case{EngineRole::kPrefill, prefill + R"("load_balance_method":"follow_bootstrap_room"})",
             true, "serves 1 models"},
        Case{EngineRole::kPrefill, prefill + R"("load_balance_method":"round_robin"})", true,
             "follow_bootstrap_room"},
        Case{EngineRole::kMixed, prefill + R"("version":"1"})", false, "role=prefill"},
        Case{EngineRole::kDecode, prefill + R"("version":"1"})", false, "role=prefill"},
        Case{EngineRole::kPrefill, R"({"disaggregation_mode":"null","dp_size":1})", false, "role="},
        Case{EngineRole::kPrefill,
             R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9001})", false,
             "bootstrap-port=9001"},
        Case{EngineRole::kMixed, R"({"detail":"Not Found"})", true, "serves 1 models"}}) {
    Rig rig({EngineKind::kSglang}, {c.role});
    rig.server(0).get["/health"] = {500, ""};
    rig.clock.advance(3s);
    rig.told.clear();
    rig.server(0).get["/health"] = {200, ""};
    rig.server(0).get["/server_info"] = {200, c.info};
    rig.clock.advance(1s);
    CHECK(rig.set.engines()[0]->healthy == c.good);
    REQUIRE_FALSE(rig.told.empty());
    CHECK(rig.told.front().contains(c.says));
  }
}

TEST_CASE(
    "engines: one that is removed ends what it has and gets nothing more; one that comes does") {
  SaidPrefixes prefixes;
  Rig rig({EngineKind::kVllm}, {}, &prefixes);
  rig.server(0).answers = {stream({kChunk}, End::kHang)};
  Asked& running = rig.ask(R"({"model":"m","stream":true,"messages":[1]})");
  auto server = std::make_unique<FakeUpstream>(rig.clock);
  FakeUpstream* const fresh = server.get();
  fresh->answers = {whole("{}")};
  rig.servers.push_back(fresh);
  rig.set.add({EngineKind::kVllm, "new", "http://n", "", EngineRole::kMixed, "", 8998, WorkerId(9)},
              std::move(server));
  rig.clock.run();
  const std::weak_ptr<Engine> old = rig.set.engines()[0];
  // The script lives in the engine, which goes with its last request.
  rig.servers.erase(rig.servers.begin());
  rig.set.remove(WorkerId(0));
  rig.set.remove(WorkerId(77));
  CHECK_FALSE(prefixes.ranks_of.contains(WorkerId(0)));
  CHECK(rig.ask(R"({"model":"m","messages":[1]})").answered->status == 200);
  CHECK(fresh->posts.size() == 1);
  rig.clock.advance(2s);
  REQUIRE_FALSE(old.expired());
  CHECK(old.lock()->running == 1);
  CHECK_FALSE(running.over);
  running.answered->disconnect();
  CHECK(running.over);
  CHECK(old.expired());
}

class Switches final : public EngineSwitches {
 public:
  bool drains(WorkerId engine) const override { return draining.contains(engine); }
  void set_drains(WorkerId engine, bool drains) override {
    if (drains) {
      draining.insert(engine);
    } else {
      draining.erase(engine);
    }
  }
  std::set<WorkerId> draining;
};

TEST_CASE("engines: operators see them, drain them, and have SGLang record its experts' loads") {
  Switches switches;
  penstock::testing::VirtualClock clock;
  EngineSet set(clock, [](const std::string&) {}, nullptr, &switches);
  std::vector<FakeUpstream*> servers;
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    auto server = std::make_unique<FakeUpstream>(clock);
    servers.push_back(server.get());
    const auto i = static_cast<std::uint32_t>(servers.size());
    EngineConfig config{kind, "e" + std::to_string(i), "http://e", "secret"};
    config.id = WorkerId(i);
    set.add(std::move(config), std::move(server));
  }
  set.start();
  clock.run();
  const auto operate = [&](std::string_view name, std::string action) {
    Result<std::string> out;
    Gate gate;
    gate.start(
        [](EngineSet& s, std::string_view n, std::string a, Result<std::string>& to) -> Task<void> {
          to = co_await s.operate(n, std::move(a));
        }(set, name, std::move(action), out));
    clock.run();
    CHECK(gate.running() == 0);
    return out;
  };
  CHECK(set.as_json().contains(
      R"({"name":"e1","engine":"vllm","url":"http://e","role":"mixed","version":null,"healthy":true,"why":null,"draining":false,"breaker":"closed","busy":false,"models":["m"],"ranks":1,"running":0,"load":0,"requests":0})"));
  const Wanted wanted{"m", WireApi::kChat, "head"};
  const auto chosen = set.pick(wanted).engine;
  const auto drained = operate(chosen->config.name, "drain");
  REQUIRE(drained.has_value());
  CHECK(drained->contains(R"("draining":true)"));
  CHECK(set.pick(wanted).engine != chosen);
  REQUIRE(operate(chosen->config.name, "resume").has_value());
  CHECK(set.pick(wanted).engine == chosen);
  CHECK(operate("e3", "drain").error().code == ErrorCode::kNotFound);
  CHECK(operate("e1", "explode").error().code == ErrorCode::kNotFound);
  CHECK(operate("e1", "experts/start").error().code == ErrorCode::kUnsupported);
  servers[1]->answers = {whole("Start\n"), whole("no", 500)};
  CHECK(operate("e2", "experts/start") == R"({"engine":"e2","said":"Start\u000a"})");
  CHECK(servers[1]->posts.back().target == "/start_expert_distribution_record");
  CHECK(header_of(servers[1]->posts.back(), "authorization") == "Bearer secret");
  CHECK(operate("e2", "experts/dump").error().code == ErrorCode::kUnavailable);
  set.stop();
  clock.advance(1min);
}

}  // namespace penstock::foreign
