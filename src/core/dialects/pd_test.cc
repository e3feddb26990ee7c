// Bodies and replies are typed from facts/engines.md 4.2, 4.3 and 4.7.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/dialects/pd_legs.h"
#include "core/dialects/pd_run.h"

namespace penstock::dialects {
namespace {

using namespace std::chrono_literals;
using enum PdAction;

std::string edited(std::string_view body, const auto& edits_of) {
  const auto read = JsonBody::read(body, leg_keys());
  REQUIRE(read.has_value());
  return read->edited(edits_of(*read));
}

}  // namespace

TEST_CASE("legs: NIXL prefill, per API, and nothing else moves") {
  const auto prefill = [](WireApi api) {
    return [api](const JsonBody& body) { return nixl_prefill_edits(body, api); };
  };
  constexpr std::string_view kParams =
      R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null})";
  CHECK(
      edited(
          R"({"model":"m", "seed":9007199254740993,"stream":true,"stream_options":{"include_usage":true},"max_tokens":77,"min_tokens":5,"x":1.50})",
          prefill(WireApi::kChat)) ==
      R"({"model":"m", "seed":9007199254740993,"stream":false,"max_tokens":1,"x":1.50,"max_completion_tokens":1,)" +
          std::string(kParams) + "}");
  CHECK(edited(R"({"prompt":[1,2],"max_tokens":7})", prefill(WireApi::kCompletion)) ==
        R"({"prompt":[1,2],"max_tokens":1,"stream":false,)" + std::string(kParams) + "}");
  CHECK(edited(R"({"input":"x","max_output_tokens":7})", prefill(WireApi::kResponses)) ==
        R"({"input":"x","max_output_tokens":1,"stream":false,)" + std::string(kParams) + "}");
}

TEST_CASE("legs: a prefill leg of tokens in has its limits in sampling_params") {
  const auto prefill = [](const JsonBody& body) {
    return one_token_edits(body, WireApi::kGenerate);
  };
  CHECK(
      edited(
          R"({"token_ids":[1,2],"sampling_params":{"temperature":0.0,"max_tokens":64,"min_tokens":3,"seed":9007199254740993},"stream":true})",
          prefill) ==
      R"({"token_ids":[1,2],"sampling_params":{"temperature":0.0,"max_tokens":1,"seed":9007199254740993},"stream":false})");
  CHECK(edited(R"({"token_ids":[1]})", prefill) ==
        R"({"token_ids":[1],"stream":false,"sampling_params":{"max_tokens":1}})");
}

TEST_CASE("legs: NIXL decode takes the reply's object verbatim") {
  constexpr std::string_view kReply =
      R"({"id":"x","choices":[],"kv_transfer_params": {"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1, 2],[3]],"remote_engine_id":"e","remote_port":5600,"remote_blocks_expiry_time":1764547200.123456 , "big":9007199254740993},"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}})";
  const PrefillReply reply = read_prefill_reply(kReply);
  REQUIRE(reply.params.has_value());
  CHECK(kReply.find(*reply.params) != std::string_view::npos);
  CHECK(reply.expires_at == doctest::Approx(1764547200.123456));
  CHECK(reply.cached_tokens == 4);
  CHECK(edited(R"({"stream":true,"min_tokens":3})", [&](const JsonBody&) {
          return std::vector{nixl_decode_edit(*reply.params)};
        }) == R"({"stream":true,"min_tokens":3,"kv_transfer_params":)" + *reply.params + "}");
  CHECK_FALSE(read_prefill_reply(R"({"kv_transfer_params":null})").params.has_value());
  CHECK_FALSE(read_prefill_reply(R"({"choices":[]})").params.has_value());
  CHECK_FALSE(read_prefill_reply("oops").params.has_value());
}

TEST_CASE("legs: Mooncake") {
  const auto engines =
      parse_mooncake_query(R"({"1":{"engine_id":"e_dp1"},"0":{"engine_id":"e_dp0"}})");
  REQUIRE(engines.size() == 2);
  CHECK(engines[1].engine_id == "e_dp1");
  CHECK(parse_mooncake_query("[]").empty());
  CHECK(
      edited("{}",
             [](const JsonBody& b) {
               return mooncake_prefill_edits(b, WireApi::kCompletion, "xfer-1");
             }) ==
      R"({"stream":false,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-1"}})");
  CHECK(
      mooncake_decode_edit({"xfer-1", "http://p:8998", "e_dp1"}).json ==
      R"({"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"xfer-1","remote_bootstrap_addr":"http://p:8998","remote_engine_id":"e_dp1"})");
}

TEST_CASE("legs: SGLang's rooms are 63 bits, name the rank, and do not repeat") {
  std::set<std::uint64_t> rooms;
  for (std::uint32_t ranks : {1U, 2U, 7U, 64U}) {
    for (std::uint64_t draw : {std::uint64_t{0}, std::uint64_t{12345}, ~std::uint64_t{0}}) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const std::uint64_t room = bootstrap_room(draw, ranks, rank);
        CHECK(room % ranks == rank);
        CHECK(room < std::uint64_t{1} << 63);
      }
    }
  }
  for (std::uint64_t draw = 0; draw < 1000; ++draw)
    rooms.insert(bootstrap_room(draw, 4, 3));
  CHECK(rooms.size() == 1000);
  const auto one = [](const JsonBody&) { return bootstrap_edits({"p0", 8998, 77}, 1, 2); };
  CHECK(edited(R"({"text":"x"})", one) ==
        R"({"text":"x","bootstrap_host":"p0","bootstrap_port":8998,"bootstrap_room":77})");
  const auto two = [](const JsonBody&) { return bootstrap_edits({"p0", 8998, 77}, 2, 2); };
  CHECK(edited("{}", two) ==
        R"({"bootstrap_host":["p0","p0"],"bootstrap_port":[8998,8998],"bootstrap_room":[77,79]})");
}

TEST_CASE("PdRun: serial, with blocks, without, and too late") {
  Instant now{1s};
  PdRun run(PdProtocol::kSerial, {});
  CHECK(run.begin(now) == PdRun::Actions{kSendPrefill});
  CHECK(run.prefill_done(now, true, 30s) == PdRun::Actions{kSendDecode});
  run.decode_first_token(now);
  CHECK(run.next_deadline() == Instant::max());
  CHECK(run.decode_done(now) == PdRun::Actions{kFinish});

  PdRun plain(PdProtocol::kSerial, {});
  plain.begin(now);
  CHECK(plain.prefill_done(now, false, std::nullopt) == PdRun::Actions{kSendDecodePlain});

  // Waited for in the gateway: 26 s after the reply nothing may be fetched any more.
  PdRun late(PdProtocol::kSerial, {});
  late.begin(now);
  CHECK(late.prefill_done(now, true, 30s) == PdRun::Actions{kSendDecode});
  CHECK(late.params_usable(now + 24s));
  CHECK_FALSE(late.params_usable(now + 25s));
  CHECK(late.params_expired(now + 26s) == PdRun::Actions{kSendDecodePlain});
  // The engine's own clock counts too, and the shorter one wins.
  PdRun short_lease(PdProtocol::kSerial, {});
  short_lease.begin(now);
  CHECK(short_lease.prefill_done(now, true, 4s) == PdRun::Actions{kSendDecodePlain});
}

TEST_CASE("PdRun: concurrent, a leg that fails cancels the other at once") {
  Instant now{1s};
  PdRun run(PdProtocol::kConcurrent, {});
  CHECK(run.begin(now) == PdRun::Actions{kSendPrefill, kSendDecode});
  CHECK(run.prefill_failed(now, true) == PdRun::Actions{kCancelDecode, kFail});
  PdRun other(PdProtocol::kConcurrent, {});
  other.begin(now);
  CHECK(other.decode_failed(now) == PdRun::Actions{kCancelPrefill, kFail});
  PdRun slow(PdProtocol::kConcurrent, {});
  slow.begin(now);
  CHECK(slow.deadline(now + 1s).empty());
  CHECK(slow.deadline(now + 5min) == PdRun::Actions{kCancelPrefill, kCancelDecode, kFail});
  // Decode may be done before prefill's reply has come.
  PdRun quick(PdProtocol::kConcurrent, {});
  quick.begin(now);
  quick.decode_first_token(now);
  CHECK(quick.decode_done(now) == PdRun::Actions{kCancelPrefill, kFinish});
}

TEST_CASE("PdRun: blocks that no decode engine has heard of are released, others never") {
  Instant now{1s};
  for (const PdProtocol protocol : {PdProtocol::kSerial, PdProtocol::kConcurrent}) {
    for (const bool blocks : {false, true}) {
      for (const bool took : {false, true}) {
        const bool released = blocks && !took;
        const auto expect = [&](auto end, PdRun::Actions rest) {
          PdRun run(protocol, {});
          run.begin(now);
          run.prefill_done(now, blocks, 30s);
          if (took) run.decode_took(now);
          const auto actions = end(run);
          if (released) rest.insert(rest.end() - 1, kRelease);
          CHECK(actions == rest);
        };
        expect([&](PdRun& run) { return run.decode_failed(now); }, {kFail});
        expect([&](PdRun& run) { return run.client_gone(now); }, {kCancelDecode, kFail});
        expect([&](PdRun& run) { return run.deadline(now + 6min); }, {kCancelDecode, kFail});
      }
    }
  }
  // Taken before the prefill's answer came.
  PdRun quick(PdProtocol::kConcurrent, {});
  quick.begin(now);
  quick.decode_took(now);
  quick.prefill_done(now, true, std::nullopt);
  CHECK(quick.decode_failed(now) == PdRun::Actions{kFail});
}

TEST_CASE("PdRun: whatever happens in whatever order, no leg is left and no old params are sent") {
  using Step = PdRun::Actions (*)(PdRun&, Instant);
  const std::vector<Step> steps = {
      [](PdRun& r, Instant t) { return r.prefill_done(t, true, 30s); },
      [](PdRun& r, Instant t) { return r.prefill_done(t, false, std::nullopt); },
      [](PdRun& r, Instant t) { return r.prefill_failed(t, true); },
      [](PdRun& r, Instant t) { return r.params_expired(t); },
      [](PdRun& r, Instant t) { return r.decode_took(t); },
      [](PdRun& r, Instant t) { return r.decode_first_token(t); },
      [](PdRun& r, Instant t) { return r.decode_done(t); },
      [](PdRun& r, Instant t) { return r.decode_failed(t); },
      [](PdRun& r, Instant t) { return r.client_gone(t); },
      [](PdRun& r, Instant t) { return r.deadline(t); },
  };
  constexpr std::size_t kDepth = 5;
  std::size_t sequences = 1;
  for (std::size_t i = 0; i < kDepth; ++i)
    sequences *= steps.size();
  for (const PdProtocol protocol : {PdProtocol::kSerial, PdProtocol::kConcurrent}) {
    for (const Duration pace : {Duration(1s), Duration(40s), Duration(6min)}) {
      for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
        PdRun run(protocol, {});
        Instant now{1s};
        int prefills = 0;
        int decodes = 0;
        int ends = 0;
        bool good = true;
        bool computed = false;  // blocks, which no decode engine has
        bool decode_has = false;
        const auto apply = [&](const PdRun::Actions& actions) {
          for (const PdAction action : actions) {
            if (action == kSendPrefill) ++prefills;
            if (action == kSendDecode || action == kSendDecodePlain) ++decodes;
            if (action == kSendDecode && protocol == PdProtocol::kSerial)
              good = good && run.params_usable(now);
            if (action == kSendDecodePlain) computed = false;
            if (action == kRelease) {
              good = good && computed && !decode_has;
              computed = false;
            }
            if (action == kCancelPrefill) --prefills;
            if (action == kCancelDecode) --decodes;
            if (action == kFinish || action == kFail) ++ends;
          }
        };
        apply(run.begin(now));
        for (std::size_t i = 0, rest = sequence; i < kDepth; ++i, rest /= steps.size()) {
          const bool was_over = run.over();
          now += pace;
          const std::size_t step = rest % steps.size();
          const bool decodes_now = run.decode_runs();
          const bool prefills_now = run.prefill_runs();
          const auto actions = steps[step](run, now);
          if (step == 0 && prefills_now) computed = true;
          if ((step == 4 || step == 5 || step == 6) && decodes_now) decode_has = true;
          good = good && (!was_over || actions.empty());
          apply(actions);
        }
        apply(run.client_gone(now));
        // What was computed for nobody was released.
        good = good && (!computed || decode_has);
        good = good && run.over() && ends == 1 && !run.prefill_runs() && !run.decode_runs() &&
               run.next_deadline() == Instant::max();
        CHECK_MESSAGE(good, "protocol ", static_cast<int>(protocol), " sequence ", sequence);
        if (!good) return;
      }
    }
  }
}

}  // namespace penstock::dialects
