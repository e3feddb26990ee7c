#include "tests/sim/world.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::simulated {
namespace {

std::uint64_t count(Instant at) {
  return static_cast<std::uint64_t>(at.time_since_epoch().count());
}

std::shared_ptr<const Tokenizer> nano_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    std::ifstream file("models/nano/tokenizer.json");
    std::stringstream text;
    text << file.rdbuf();
    auto loaded = Tokenizer::from_json(text.str());
    ENSURE(loaded);
    return std::shared_ptr<const Tokenizer>(std::move(*loaded));
  }();
  return tokenizer;
}

}  // namespace

const gateway::ModelCatalog& toy_catalog() {
  static const gateway::ModelCatalog* const catalog = [] {
    auto* made = new gateway::ModelCatalog;
    const auto tokenizer = nano_tokenizer();
    auto encoding = prompt::detect_chat_encoding(
        [&](std::string_view token) { return tokenizer->token_id(token).has_value(); });
    ENSURE(encoding);
    ENSURE(made->add({kToyModel, tokenizer, std::move(*encoding), 1}));
    return made;
  }();
  return *catalog;
}

const ToyVocabulary& toy_vocabulary() {
  static const ToyVocabulary vocabulary = [] {
    const auto tokenizer = nano_tokenizer();
    ToyVocabulary made;
    made.size = static_cast<std::uint32_t>(tokenizer->vocab_size());
    for (TokenId id = 0; id < made.size; ++id) {
      const std::string_view bytes = tokenizer->token_bytes(id);
      const bool plain =
          std::ranges::all_of(bytes, [](char c) { return c == ' ' || (c >= 'a' && c <= 'z'); });
      if (!bytes.empty() && plain && !tokenizer->is_added(id)) made.words.push_back(id);
    }
    made.end = *tokenizer->token_id("<｜end▁of▁sentence｜>");
    return made;
  }();
  return vocabulary;
}

World::GatewayRig::GatewayRig(World& w, std::size_t index)
    : world(w),
      engines(
          w.network.clock, w.workers_.size(), [&w](std::size_t place) { return w.workers_[place]; },
          w.options_.control_latency, w.options_.seed * 8 + index + 1),
      encoder(w.network.clock, pool, secret),
      context{w.network.clock,
              engines,
              encoder,
              *this,
              toy_catalog(),
              w.options_.limits,
              Rng(w.options_.seed * 8 + (w.options_.gateways_alike ? 0 : index + 1)),
              [] { return std::int64_t{1700000000}; },
              {},
              [] { return std::string(); }},
      gateway(context) {
  auto placer = gateway::Placer::make(w.options_.policies);
  ENSURE(placer);
  context.placer = std::move(*placer);
  context.new_handoff_id = [ids = Rng(w.options_.seed * 8 + index + 1)]() mutable {
    return HandoffId{ids.next_u64(), ids.next_u64()};
  };
}

void World::GatewayRig::request_finished(const RequestRecord& record) {
  Asked& asked = *world.asked_.at(std::stoull(record.request_id.substr(1)));
  asked.over = true;
  asked.over_at = world.network.clock.now();
  asked.record = record;
  Digest& digest = world.digest_;
  digest.add(record.request_id);
  digest.add(record.placement);
  digest.add(record.outcome);
  digest.add(asked.client->all());
  digest.add(count(asked.over_at));
}

World::World(WorldOptions options) : options_(std::move(options)) {
  workers_.resize(options_.places.size());
  for (std::size_t place = 0; place < workers_.size(); ++place)
    start(place);
  for (std::size_t i = 0; i < options_.gateways; ++i)
    gateways_.push_back(std::make_unique<GatewayRig>(*this, i));
  advance(std::chrono::milliseconds(50));
}

World::~World() {
  // What still runs, after a failure, must end before its gateway does.
  for (const auto& rig : gateways_)
    rig->gateway.stop_running({ErrorCode::kUnavailable, "the world ends", {}, {}});
  for (const auto& asked : asked_)
    asked->client->leave();
  advance(std::chrono::seconds(1));
}

bool World::advance_until(const std::function<bool()>& done, Duration most, Duration step) {
  const Instant end = clock().now() + most;
  while (!done()) {
    if (clock().now() >= end) return false;
    advance(step);
  }
  return true;
}

bool World::finish(Duration most) {
  return advance_until(
      [this] { return std::ranges::all_of(asked_, [](const auto& asked) { return asked->over; }); },
      most, std::chrono::milliseconds(20));
}

std::string World::settle(Duration most) {
  advance_until([this] { return leftovers().empty(); }, most, std::chrono::milliseconds(250));
  return leftovers();
}

void World::start(std::size_t place) {
  ENSURE(workers_[place] == nullptr);
  const PlaceOptions& wanted = options_.places[place];
  SimWorkerOptions options;
  options.name = fmt::format("w{}", place);
  options.role = wanted.role;
  options.zone = wanted.zone;
  options.epoch = Epoch(++last_epoch_);
  options.handoff = options_.handoff;
  options.frame_time = options_.frame_time;
  options.on_output = [this, place](std::uint32_t rank, const service::StreamOutput& output) {
    note(place, rank, output);
  };
  std::vector<std::unique_ptr<SimEngine>> engines;
  for (std::uint32_t rank = 0; rank < wanted.ranks; ++rank) {
    engines.push_back(options_.make_engine ? options_.make_engine(place, rank)
                                           : std::make_unique<ToyEngine>(
                                                 kToyModel, toy_vocabulary(), wanted.profile));
  }
  workers_[place] = std::make_shared<SimWorker>(network, std::move(options), std::move(engines));
}

void World::note(std::uint64_t place, std::uint32_t rank, const service::StreamOutput& output) {
  digest_.add(place * 64 + rank);
  digest_.add(count(network.clock.now()));
  digest_.add(output.output.request.value);
  digest_.add(output.output.index);
  for (const OutputToken& token : output.output.tokens)
    digest_.add(token.token);
  digest_.add(output.output.finish ? static_cast<std::uint64_t>(*output.output.finish) + 1 : 0);
}

void World::kill(std::size_t place) {
  workers_[place]->kill();
  graveyard_.push_back(std::exchange(workers_[place], nullptr));
}

void World::roll(std::size_t place, Duration pause) {
  workers_[place]->drain([this, place, pause] {
    graveyard_.push_back(std::exchange(workers_[place], nullptr));
    clock().call_at(clock().now() + pause, [this, place] { start(place); });
  });
}

void World::crash_gateway(std::size_t i) {
  for (const auto& asked : asked_)
    if (!asked->over && asked->gateway == i) asked->client->leave();
  gateways_[i]->engines.crash();
}

std::shared_ptr<Asked> World::ask(std::size_t gateway, std::string body, ClientPlan plan) {
  auto asked = std::make_shared<Asked>();
  asked->body = std::move(body);
  asked->gateway = gateway;
  asked->client = std::make_shared<SimClient>(network.clock, plan, options_.write_timeout);
  asked->at = clock().now();
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.body = asked->body;
  request.headers = {{"content-type", "application/json"},
                     {"x-request-id", fmt::format("r{}", asked_.size())}};
  request.received_at = clock().now();
  asked_.push_back(asked);
  GatewayRig& rig = *gateways_[gateway];
  rig.gate.start(rig.gateway.handle(asked->client->exchange(std::move(request))));
  return asked;
}

std::string World::leftovers() const {
  std::string out;
  const auto say = [&out](std::string_view what, std::uint64_t n, std::string_view where) {
    if (n != 0) out += fmt::format("{} {} at {}; ", n, what, where);
  };
  for (std::size_t i = 0; i < gateways_.size(); ++i) {
    const GatewayRig& rig = *gateways_[i];
    const std::string name = fmt::format("gateway {}", i);
    say("requests in flight", rig.gateway.in_flight(), name);
    say("tasks", rig.gate.running(), name);
    say("permits", rig.context.ledger.empty() ? 0 : 1, name);
    say("requests in the queue", rig.context.admission.queued(), name);
    say("slots", rig.context.admission.running(), name);
    say("open requests", rig.engines.open(), name);
    say("unfinished requests", rig.engines.unfinished(), name);
  }
  for (std::size_t place = 0; place < workers_.size(); ++place) {
    if (workers_[place] == nullptr) continue;
    SimWorker& worker = *workers_[place];
    for (std::size_t rank = 0; rank < worker.ranks(); ++rank) {
      const std::string name = fmt::format("{}/{}", worker.name(), rank);
      say("open legs", worker.open(rank), name);
      say("sequences", worker.engine(rank).open(), name);
      say("used blocks", worker.engine(rank).blocks_used(), name);
    }
    const service::HandoffCounters now = worker.handoffs();
    say("open handoffs", now.owner.open, worker.name());
    say("parked attaches", now.owner.parked, worker.name());
    say("held blocks", now.owner.blocks_held, worker.name());
    say("pulls", now.pulls_running, worker.name());
    say("reads", now.reads_running + worker.transport().reads_pending(), worker.name());
  }
  return out;
}

std::uint64_t World::digest() const {
  Digest all = digest_;
  all.add(count(network.clock.now()));
  all.add(network.messages);
  all.add(network.reads);
  for (const auto& asked : asked_) {
    all.add(asked->client->all());
    all.add(static_cast<std::uint64_t>(asked->client->end));
  }
  return all.value();
}

const Answer& alone(const std::string& body) {
  static std::map<std::string, Answer> known;
  const auto found = known.find(body);
  if (found != known.end()) return found->second;
  WorldOptions options;
  options.places.resize(1);
  World world(options);
  const auto asked = world.ask(0, body);
  ENSURE(world.finish());
  const Answer answer = asked->answer();
  ENSURE(asked->finished() && answer.done && !answer.broken && answer.error.empty());
  return known.emplace(body, answer).first->second;
}

}  // namespace penstock::simulated
