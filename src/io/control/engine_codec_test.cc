#include "io/control/engine_codec.h"

#include <map>
#include <memory>

#include "base/rng.h"
#include "io/control/pending_frame.h"

#include <doctest/doctest.h>

namespace penstock::control {

TEST_CASE("expert maps, loads and refusals survive the wire; sizes that do not fit are refused") {
  ExpertReport report;
  report.first_layer = 1;
  report.layers = 1;
  report.experts = 3;
  report.picks = {1, 2, ~std::uint64_t{0}};
  wire::ExpertAnswer answer;
  encode(Result<ExpertReport>(report), answer);
  CHECK(**decode(answer) == report);
  report.map = {7, 6, Epoch(1), Epoch(2), 1, 3, 2, 2, {0, 1, 2, 0}};
  report.rank_picks = {4, 5};
  answer.Clear();
  encode(Result<ExpertReport>(report), answer);
  CHECK(**decode(answer) == report);
  const auto broken = [&](auto change) {
    wire::ExpertAnswer changed = answer;
    change(*changed.mutable_report());
    const auto decoded = decode(changed);
    return !decoded && decoded.error().code == ErrorCode::kDataLoss;
  };
  CHECK(broken([](auto& r) { r.add_picks(1); }));
  CHECK(broken([](auto& r) { r.set_layers(2000); }));
  CHECK(broken([](auto& r) { r.add_rank_picks(1); }));
  CHECK(broken([](auto& r) { r.mutable_map()->set_experts(4); }));
  CHECK(broken([](auto& r) { r.mutable_map()->set_version(0); }));
  CHECK(broken([](auto& r) { r.mutable_map()->set_slots(0, 3); }));
  CHECK(broken([](auto& r) { r.mutable_map()->set_ranks(0xFFFFFFFF); }));
  CHECK(broken([](auto& r) {
    r.mutable_map()->set_ranks(0);
    r.mutable_map()->clear_slots();
  }));
  answer.Clear();
  encode(Result<ExpertReport>(fail(ErrorCode::kConflict, "old")), answer);
  CHECK((*decode(answer)).error().code == ErrorCode::kConflict);
  CHECK((*decode(answer)).error().message == "old");
  answer.set_error_code(200);
  CHECK(!decode(answer));
  wire::WorkerFrame frame;
  const ExpertUse use{3, 1, {5, 6}, {7, 8}};
  encode(use, *frame.add_experts());
  CHECK(decode(frame.experts()) == std::vector{use});
  frame.mutable_experts(0)->add_paced(9);
  CHECK(!decode(frame.experts()));
}

TEST_CASE("a request survives the wire") {
  EngineRequest r;
  r.id = RequestId(~std::uint64_t{0});
  r.model = "alpha";
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{0, 1, 0xFFFFFFFF});
  r.emitted = {5, 6};
  r.sampling = {.temperature = 0.5F,
                .top_p = 0.25F,
                .top_k = -1,
                .min_p = 0.125F,
                .presence_penalty = -2.0F,
                .frequency_penalty = 1.5F,
                .repetition_penalty = 1.25F,
                .seed = ~std::uint64_t{0},
                .logit_bias = {{3, -100.0F}, {4, 100.0F}},
                .stop_token_ids = {2, 9},
                .ignore_eos = true,
                .top_logprobs = -1,
                .choices = 128,
                .max_tokens = 77};
  r.cache = {"tenant:a", "a", "agent", "req-1"};
  r.rank = 3;
  r.constraint = {Constraint::Kind::kJsonSchema, "{\"a\": \"\xC3\xA4\"}", 7};
  r.handoff = {Leg::kDecode, {1, ~std::uint64_t{0}}, "shm:/there", Epoch(5)};
  wire::Submit submit;
  encode(r, submit);
  wire::Submit parsed;
  REQUIRE(parsed.ParseFromString(submit.SerializeAsString()));
  const auto back = decode(parsed);
  REQUIRE(back);
  CHECK(back->id == r.id);
  CHECK(back->model == r.model);
  CHECK(*back->prompt == *r.prompt);
  CHECK(back->emitted == r.emitted);
  CHECK(back->sampling == r.sampling);
  CHECK(back->cache == r.cache);
  CHECK(back->rank == 3);
  CHECK(back->constraint == r.constraint);
  CHECK(back->handoff == r.handoff);
  // With the prompt written apart, the frame says the same; so it does without any.
  wire::Submit apart;
  encode_without_prompt(r, apart);
  std::string bytes;
  append_submit(apart, r.prompt, bytes);
  CHECK(bytes.size() <= submit_bytes(apart, r.prompt));
  append_submit(apart, nullptr, bytes);
  wire::GatewayFrame frame;
  REQUIRE(frame.ParseFromString(bytes));
  REQUIRE(frame.submits_size() == 2);
  CHECK(frame.submits(0).SerializeAsString() == submit.SerializeAsString());
  CHECK(frame.submits(1).SerializeAsString() == apart.SerializeAsString());
  submit.mutable_handoff()->set_decode(false);  // a prefill leg with a source
  CHECK(decode(submit).error().field == "handoff");
  submit.mutable_handoff()->clear_source();
  CHECK(decode(submit)->handoff.leg == Leg::kPrefill);
  submit.mutable_handoff()->set_decode(true);  // a decode leg without one
  CHECK(decode(submit).error().field == "handoff");
  submit.clear_handoff();
  CHECK(decode(submit)->handoff == HandoffRef{});
  submit.set_prompt("\1\0\0\0\2", 5);  // an id and a part of one
  CHECK(decode(submit).error().field == "prompt");
  submit.clear_prompt();
  CHECK(decode(submit)->prompt->empty());
  submit.set_model(std::string(5000, 'm'));
  CHECK(decode(submit).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("a worker's description survives the wire, its path may be any bytes") {
  WorkerDescription worker;
  worker.epoch = Epoch(7);
  worker.name = "w\xFF";
  worker.engine = "embedded 1";
  worker.models = {{"alpha", "/models/\xFE", 4096, 1500, true, {"d", "b", "f", 64, 128}, 768}};
  worker.role = WorkerRole::kPrefill;
  worker.zone = "west";
  worker.transport = "tcp:10.0.0.1:7";
  worker.step_group = "ep-0";
  wire::WorkerHello hello;
  encode(worker, hello);
  wire::WorkerHello parsed;
  REQUIRE(parsed.ParseFromString(hello.SerializeAsString()));
  const auto back = decode(parsed);
  REQUIRE(back);
  CHECK(back->name == "w?");
  CHECK(back->models[0].checkpoint_dir == "/models/\xFE");
  CHECK(back->models[0].bit_exact);
  CHECK(back->models[0].kv_token_bytes == 768);
  CHECK(back->role == worker.role);
  CHECK(back->zone == worker.zone);
  CHECK(back->step_group == worker.step_group);
  CHECK(back->transport == worker.transport);
  CHECK(back->models[0].kv == worker.models[0].kv);
}

TEST_CASE("clean_utf8 replaces what is not UTF-8 and never cuts a character") {
  struct Case {
    const char* text;
    std::size_t bytes_max;
    const char* expected;
  };
  const Case cases[] = {
      {"plain", 100, "plain"},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 100, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"a\xC3", 100, "a?"},
      {"\xE2\x82", 100, "??"},
      {"\xC0\x80", 100, "??"},            // overlong
      {"\xED\xA0\x80", 100, "???"},       // surrogate
      {"\xF4\x90\x80\x80", 100, "????"},  // beyond U+10FFFF
      {"\xE0\x80\x80", 100, "???"},
      {"ab\xC3\xA9", 3, "ab"},
      {"", 0, ""},
  };
  for (const Case& c : cases)
    CHECK(clean_utf8(c.text, c.bytes_max) == c.expected);
}

TEST_CASE("an error message of any bytes can be sent") {
  EngineOutput output;
  output.request = RequestId(1);
  output.finish = FinishReason::kError;
  output.error = Error{ErrorCode::kModelNotFound, "no \xFF" + std::string(9000, 'x'), "model", {}};
  wire::Output out;
  append(output, false, out);
  wire::Output parsed;
  REQUIRE(parsed.ParseFromString(out.SerializeAsString()));
  const auto back = decode(parsed, {1, 10, -1, 0});
  REQUIRE(back);
  CHECK(back->error->code == ErrorCode::kModelNotFound);
  CHECK(back->error->message.substr(0, 5) == "no ?x");
  CHECK(back->error->field == "model");
}

TEST_CASE("a merged frame means the same as its parts") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Rng rng(seed);
    PendingFrame merged;
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<OutputToken>> expected;
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t id = rng.below(3);
      EngineOutput output;
      output.request = RequestId(id);
      output.choice = static_cast<std::uint32_t>(rng.below(2));
      for (std::uint64_t n = rng.below(3); n > 0; --n) {
        OutputToken token{static_cast<TokenId>(rng.below(100)), -1.0F, {}};
        if (id == 1) token.top.assign(rng.below(3), {1, -2.0F});
        if (id != 1) token.logprob = 0;
        auto& list = expected[{id, output.choice}];
        list.push_back(token);
        output.tokens.push_back(token);
      }
      merged.add(output, id == 1);
    }
    CHECK(merged.due());
    const std::size_t bytes = merged.bytes();
    wire::WorkerFrame frame;
    merged.take(frame);
    CHECK_FALSE(merged.due());
    CHECK(merged.bytes() == 0);
    CHECK(frame.ByteSizeLong() <= bytes);
    CHECK(frame.outputs_size() <= 6);
    for (const wire::Output& out : frame.outputs()) {
      const auto back = decode(out, {2, 100, out.request_id() == 1 ? 2 : -1, 10});
      REQUIRE(back);
      CHECK(back->tokens == expected[{out.request_id(), out.choice()}]);
    }
  }
}

TEST_CASE("a number used again after its finish is not merged into the finished output") {
  PendingFrame pending;
  EngineOutput output;
  output.request = RequestId(1);
  output.finish = FinishReason::kStop;
  pending.add(output, false);
  output.finish = std::nullopt;
  output.tokens = {{5, 0.0F, {}}};
  pending.add(output, false);
  pending.add(output, false);
  wire::WorkerFrame frame;
  pending.take(frame);
  REQUIRE(frame.outputs_size() == 2);
  CHECK(frame.outputs(0).tokens_size() == 0);
  CHECK(frame.outputs(1).tokens_size() == 2);
  CHECK(frame.outputs(1).finish() == wire::FINISH_NONE);
}

}  // namespace penstock::control
