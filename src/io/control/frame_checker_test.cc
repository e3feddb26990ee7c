#include "io/control/frame_checker.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <doctest/doctest.h>

namespace penstock::control {
namespace {

using Frame = wire::WorkerFrame;

Frame hello_frame() {
  Frame frame;
  wire::WorkerHello& hello = *frame.mutable_hello();
  hello.set_worker_epoch(9);
  hello.set_protocol_version(kProtocolVersion);
  for (const char* name : {"alpha", "beta"}) {
    wire::Model& model = *hello.add_models();
    model.set_name(name);
    model.set_vocab_size(100);
    model.set_context_length(1000);
  }
  frame.set_step(10);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    wire::RankLoad& load = *frame.add_loads();
    load.set_rank(rank);
    load.set_model(rank);
    load.set_step(5);
    load.set_kv_tokens_total(1000);
  }
  return frame;
}

EngineRequest request(std::uint64_t id, std::int32_t top_logprobs, std::uint32_t choices) {
  EngineRequest r;
  r.id = RequestId(id);
  r.model = "alpha";
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1, 2, 3});
  r.sampling.choices = choices;
  r.sampling.max_tokens = 4;
  r.sampling.top_logprobs = top_logprobs;
  return r;
}

// Greeted; request 1 is plain with two choices, request 2 has one choice and asks for 2 logprobs.
FrameChecker ready() {
  FrameChecker checker;
  REQUIRE(checker.check(hello_frame()));
  REQUIRE(checker.opened(request(1, -1, 2)));
  REQUIRE(checker.opened(request(2, 2, 1)));
  return checker;
}

Frame good_frame() {
  Frame frame;
  frame.set_step(11);
  wire::Output& plain = *frame.add_outputs();
  plain.set_request_id(1);
  plain.add_tokens(99);
  plain.set_cached_tokens(3);
  wire::Output& logged = *frame.add_outputs();
  logged.set_request_id(2);
  for (int i = 0; i < 2; ++i) {
    logged.add_tokens(7);
    logged.add_logprobs(-0.25F);
    logged.add_top_counts(static_cast<std::uint32_t>(i));
  }
  logged.add_top_tokens(8);
  logged.add_top_logprobs(-std::numeric_limits<float>::infinity());
  return frame;
}

}  // namespace

TEST_CASE("a right frame is converted") {
  FrameChecker checker = ready();
  const auto outputs = checker.check(good_frame());
  REQUIRE(outputs);
  REQUIRE(outputs->size() == 2);
  CHECK(outputs->at(0).tokens == std::vector<OutputToken>{{99, 0.0F, {}}});
  CHECK(outputs->at(0).cached_tokens == 3);
  REQUIRE(outputs->at(1).tokens.size() == 2);
  CHECK(outputs->at(1).tokens[0].top.empty());
  CHECK(outputs->at(1).tokens[1].top[0].token == 8);
  CHECK(checker.loads().size() == 2);
  CHECK(checker.open() == 2);
}

TEST_CASE("what a worker may not say") {
  struct Case {
    const char* reason;
    std::function<void(Frame&)> spoil;
  };
  const auto load = [](Frame& f, std::uint32_t rank) -> wire::RankLoad& {
    wire::RankLoad& l = *f.add_loads();
    l.set_rank(rank);
    l.set_step(5);
    return l;
  };
  const auto loads = [&](Frame& f) {
    load(f, 0);
    return &load(f, 1);
  };
  const Case cases[] = {
      {"a second hello", [](Frame& f) { f.mutable_hello(); }},
      {"steps fell from 10 to 9", [](Frame& f) { f.set_step(9); }},
      {"steps of rank 1 fell", [&](Frame& f) { loads(f)->set_step(4); }},
      {"had 2 ranks and now 1", [&](Frame& f) { load(f, 0); }},
      {"load of rank 7", [&](Frame& f) { loads(f)->set_rank(7); }},
      {"model 2", [&](Frame& f) { loads(f)->set_model(2); }},
      {"absurd load", [&](Frame& f) { loads(f)->set_running(1U << 30); }},
      {"absurd load", [&](Frame& f) { loads(f)->set_waiting(1U << 30); }},
      {"absurd load", [&](Frame& f) { loads(f)->set_kv_tokens_used(1); }},
      {"absurd load", [&](Frame& f) { loads(f)->set_kv_tokens_total(std::uint64_t{1} << 60); }},
      {"request 3, which is not open", [](Frame& f) { f.mutable_outputs(0)->set_request_id(3); }},
      {"choice 2 of 2", [](Frame& f) { f.mutable_outputs(0)->set_choice(2); }},
      {"outside the vocabulary", [](Frame& f) { f.mutable_outputs(0)->set_tokens(0, 100); }},
      {"outside the vocabulary", [](Frame& f) { f.mutable_outputs(1)->set_top_tokens(0, 100); }},
      {"4 cached tokens", [](Frame& f) { f.mutable_outputs(0)->set_cached_tokens(4); }},
      {"nobody asked for", [](Frame& f) { f.mutable_outputs(0)->add_logprobs(-1); }},
      {"nobody asked for", [](Frame& f) { f.mutable_outputs(0)->add_top_counts(0); }},
      {"2 tokens with 3 logprobs", [](Frame& f) { f.mutable_outputs(1)->add_logprobs(-1); }},
      {"and 1 counts", [](Frame& f) { f.mutable_outputs(1)->mutable_top_counts()->RemoveLast(); }},
      {"3 alternatives, 2 asked for", [](Frame& f) { f.mutable_outputs(1)->set_top_counts(1, 3); }},
      {"counts say 2", [](Frame& f) { f.mutable_outputs(1)->set_top_counts(1, 2); }},
      {"counts say 1", [](Frame& f) { f.mutable_outputs(1)->add_top_logprobs(-1); }},
      {"not a number", [](Frame& f) { f.mutable_outputs(1)->set_logprobs(0, NAN); }},
      {"positive", [](Frame& f) { f.mutable_outputs(1)->set_top_logprobs(0, 0.5F); }},
      {"more tokens than were asked for",
       [](Frame& f) {
         for (int i = 0; i < 4; ++i)
           f.mutable_outputs(0)->add_tokens(1);
       }},
      {"unknown finish reason",
       [](Frame& f) { f.mutable_outputs(0)->set_finish(static_cast<wire::Finish>(9)); }},
      {"unknown error code",
       [](Frame& f) {
         f.mutable_outputs(0)->set_finish(wire::FINISH_ERROR);
         f.mutable_outputs(0)->set_error_code(200);
       }},
      {"too long",
       [](Frame& f) {
         f.mutable_outputs(0)->set_finish(wire::FINISH_ERROR);
         f.mutable_outputs(0)->set_error_message(std::string(5000, 'x'));
       }},
      {"it is no prefill leg",
       [](Frame& f) { f.mutable_outputs(0)->set_finish(wire::FINISH_HANDED_OFF); }},
      {"goes on after its finish",
       [](Frame& f) {
         f.mutable_outputs(0)->set_finish(wire::FINISH_STOP);
         *f.add_outputs() = f.outputs(0);
       }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.reason);
    FrameChecker checker = ready();
    Frame frame = good_frame();
    c.spoil(frame);
    const auto outputs = checker.check(frame);
    REQUIRE_FALSE(outputs);
    CHECK(outputs.error().code == ErrorCode::kDataLoss);
    CHECK_MESSAGE(outputs.error().message.find(c.reason) != std::string::npos,
                  outputs.error().message);
  }
}

TEST_CASE("what a hello may not say") {
  const std::function<void(Frame&)> cases[] = {
      [](Frame& f) { f.clear_hello(); },
      [](Frame& f) { f.mutable_hello()->set_protocol_version(1); },
      [](Frame& f) { f.mutable_hello()->set_name(std::string(5000, 'x')); },
      [](Frame& f) { f.mutable_hello()->mutable_models(0)->clear_name(); },
      [](Frame& f) { f.mutable_hello()->mutable_models(0)->set_name("beta"); },
      [](Frame& f) { f.mutable_hello()->mutable_models(0)->set_vocab_size(0); },
      [](Frame& f) { f.mutable_hello()->mutable_models(0)->set_vocab_size(1U << 25); },
      [](Frame& f) { f.mutable_hello()->mutable_models(0)->set_context_length(0); },
      [](Frame& f) {
        for (int i = 0; i < 2000; ++i)
          f.mutable_hello()->add_models()->set_name("m");
      },
      [](Frame& f) { f.add_outputs(); },
      [](Frame& f) { f.mutable_hello()->set_role(static_cast<wire::Role>(3)); },
      [](Frame& f) { f.mutable_hello()->set_role(wire::ROLE_PREFILL); },  // without a transport
      [](Frame& f) { f.mutable_hello()->set_zone(std::string(5000, 'z')); },
      [](Frame& f) { f.mutable_hello()->set_transport(std::string(5000, 't')); },
      [](Frame& f) { f.mutable_hello()->mutable_models(0)->mutable_kv()->set_block_tokens(~0U); },
      [](Frame& f) { f.mutable_loads(0)->set_prefill_token(-1e-6); },
      [](Frame& f) { f.mutable_loads(0)->set_prefill_base(std::nan("")); },
      [](Frame& f) { f.mutable_loads(0)->set_prompt_tokens_waiting(std::uint64_t{1} << 60); },
      [](Frame& f) {
        for (int i = 0; i < 300; ++i)
          f.mutable_handoffs()->add_edges(1);
      },
  };
  for (const auto& spoil : cases) {
    FrameChecker checker;
    Frame frame = hello_frame();
    spoil(frame);
    CHECK_FALSE(checker.check(frame));
  }
}

TEST_CASE("tokens have their place: an answer goes on where it was, without gap or repetition") {
  FrameChecker checker;
  REQUIRE(checker.check(hello_frame()));
  EngineRequest moved = request(1, -1, 2);
  moved.sampling.max_tokens = 20;
  moved.emitted = {5, 6, 7};
  REQUIRE(checker.opened(moved));
  const auto frame = [](std::uint32_t choice, std::uint32_t index, int tokens) {
    Frame out;
    out.set_step(11);
    wire::Output& output = *out.add_outputs();
    output.set_request_id(1);
    output.set_choice(choice);
    output.set_index(index);
    for (int i = 0; i < tokens; ++i)
      output.add_tokens(9);
    return out;
  };
  REQUIRE(checker.check(frame(0, 3, 2)));
  REQUIRE(checker.check(frame(1, 0, 1)));
  REQUIRE(checker.check(frame(0, 5, 1)));
  for (const std::uint32_t wrong : {5U, 7U, 0U}) {
    FrameChecker copy = checker;
    const auto outputs = copy.check(frame(0, wrong, 1));
    REQUIRE_FALSE(outputs);
    CHECK(outputs.error().message.find("instead of 6") != std::string::npos);
  }
}

TEST_CASE("what a worker says of its handoffs is kept until it says more") {
  FrameChecker checker = ready();
  Frame frame;
  frame.set_step(11);
  frame.mutable_handoffs()->set_open(3);
  frame.mutable_handoffs()->add_edges(7);
  REQUIRE(checker.check(frame));
  Frame later;
  later.set_step(12);
  REQUIRE(checker.check(later));
  CHECK(checker.handoffs().open == 3);
  CHECK(checker.handoffs().edges == std::vector<std::uint64_t>{7});
}

TEST_CASE("a request is over when every choice finished, or with an error") {
  FrameChecker checker = ready();
  Frame frame;
  frame.set_step(11);
  wire::Output& output = *frame.add_outputs();
  output.set_request_id(1);
  output.set_finish(wire::FINISH_STOP);
  REQUIRE(checker.check(frame));
  CHECK(checker.open() == 2);
  CHECK(checker.opened(request(1, -1, 1)).error().code == ErrorCode::kConflict);
  SUBCASE("the other choice finishes") {
    frame.mutable_outputs(0)->set_choice(1);
    REQUIRE(checker.check(frame));
  }
  SUBCASE("an error, even of the choice that is over") {
    frame.mutable_outputs(0)->set_finish(wire::FINISH_ERROR);
    frame.mutable_outputs(0)->set_error_code(static_cast<std::uint32_t>(ErrorCode::kOverloaded));
    const auto outputs = checker.check(frame);
    REQUIRE(outputs);
    CHECK(outputs->at(0).error->code == ErrorCode::kOverloaded);
  }
  CHECK(checker.open() == 1);
  CHECK(checker.opened(request(1, -1, 1)).has_value());
}

TEST_CASE("a forgotten request is checked and dropped until the worker is done with it") {
  FrameChecker checker = ready();
  checker.forgotten(RequestId(1));
  checker.forgotten(RequestId(50));
  const auto outputs = checker.check(good_frame());
  REQUIRE(outputs);
  CHECK(outputs->size() == 1);
  CHECK(checker.open() == 2);
  Frame bad;
  bad.set_step(11);
  bad.add_outputs()->set_request_id(1);
  bad.mutable_outputs(0)->set_choice(5);
  CHECK_FALSE(checker.check(bad));
}

TEST_CASE("opened() refuses unknown models and empty requests") {
  FrameChecker checker = ready();
  auto r = request(5, -1, 1);
  r.model = "gamma";
  CHECK(checker.opened(r).error().code == ErrorCode::kModelNotFound);
  CHECK(checker.opened(request(5, -1, 0)).error().code == ErrorCode::kInvalidArgument);
  r.model = "alpha";
  r.prompt = nullptr;
  CHECK(checker.opened(r).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("expert loads and answers: of all ranks, and only to what was asked") {
  FrameChecker checker = ready();
  Frame frame;
  frame.set_step(11);
  for (int rank = 0; rank < 2; ++rank) {
    frame.add_experts()->add_picks(5);
    frame.mutable_experts(rank)->add_paced(6);
  }
  REQUIRE(checker.check(frame));
  REQUIRE(checker.experts().size() == 2);
  CHECK(checker.experts()[1].paced == std::vector<std::uint64_t>{6});
  Frame plain;
  plain.set_step(11);
  REQUIRE(checker.check(plain));
  CHECK(checker.experts().size() == 2);  // as before

  checker.asked(4);
  plain.add_expert_answers()->set_number(4);
  plain.mutable_expert_answers(0)->set_error_code(static_cast<std::uint32_t>(ErrorCode::kConflict));
  REQUIRE(checker.check(plain));
  const auto answers = checker.take_expert_answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].report.error().code == ErrorCode::kConflict);
  CHECK(checker.take_expert_answers().empty());
  CHECK(!checker.check(plain));  // answered twice

  FrameChecker other = ready();
  frame.mutable_experts()->RemoveLast();
  CHECK(!other.check(frame));
}

}  // namespace penstock::control
