// The texts are typed from facts/engines.md 4.1, 4.7 and 4.8, not made by code of ours.
#include "core/dialects/engine_reports.h"

#include <doctest/doctest.h>

#include "core/dialects/dialect.h"

namespace penstock::dialects {

TEST_CASE("engines: model lists of vLLM, SGLang and llama.cpp") {
  const auto vllm = parse_models(
      R"({"object":"list","data":[{"id":"meta-llama/Llama-3.1-8B","object":"model","owned_by":"vllm","root":"/models/llama","parent":null,"max_model_len":131072},{"id":"sql-lora","root":"/lora/sql","parent":"meta-llama/Llama-3.1-8B"}]})");
  REQUIRE(vllm.has_value());
  CHECK(*vllm == std::vector<EngineModel>{{"meta-llama/Llama-3.1-8B", 131072, "/models/llama"},
                                          {"sql-lora", 0, "/lora/sql", true}});
  const auto llama = parse_models(
      R"({"models":[{"name":"q"}],"object":"list","data":[{"id":"qwen.gguf","meta":{"n_ctx_train":32768,"n_vocab":1}}]})");
  REQUIRE(llama.has_value());
  CHECK(*llama == std::vector<EngineModel>{{"qwen.gguf", 32768, ""}});
  CHECK_FALSE(parse_models("<html>").has_value());
  CHECK_FALSE(parse_models(R"({"detail":"Unauthorized"})").has_value());
  CHECK(parse_models(R"({"data":[]})")->empty());
}

TEST_CASE("engines: vLLM's gauges stay apart by rank; old and new names") {
  const auto loads = parse_vllm_metrics(
      "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
      "# TYPE vllm:num_requests_running gauge\n"
      "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\n"
      "vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"},b\"} 3.0\n"
      "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n"
      "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n"
      "vllm:gpu_cache_usage_perc{engine=\"1\",model_name=\"m\"} 5e-1\n"
      "vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} NaN\n"
      "vllm:prefix_cache_hits_total{engine=\"0\"} 7\r\n");
  CHECK(loads == std::vector<RankLoad>{{0, 3, 2, 0.25}, {1, 4, std::nullopt, 0.5}});
  CHECK(parse_vllm_metrics("vllm:num_requests_running 5").size() == 1);
  CHECK(parse_vllm_metrics("404 page not found\n{\n").empty());
}

TEST_CASE("engines: SGLang's loads, new, old and by metrics") {
  CHECK(
      parse_sglang_loads(
          R"({"timestamp":"t","version":"0.5.6","loads":[{"dp_rank":1,"num_running_reqs":4,"num_waiting_reqs":1,"token_usage":0.5},{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0}]})") ==
      std::vector<RankLoad>{{0, 0, 0, std::nullopt}, {1, 4, 1, 0.5}});
  CHECK(
      parse_sglang_loads(R"([{"dp_rank":0,"num_reqs":7,"num_waiting_reqs":2,"num_tokens":900}])") ==
      std::vector<RankLoad>{{0, 5, 2, std::nullopt}});
  CHECK(parse_sglang_loads(R"({"detail":"Not Found"})").empty());
  CHECK(parse_sglang_metrics("sglang:num_running_reqs{dp_rank=\"2\"} 6.0\n"
                             "sglang:num_queue_reqs{dp_rank=\"2\"} 1.0\n"
                             "sglang:token_usage{dp_rank=\"2\"} 0.1\n") ==
        std::vector<RankLoad>{{2, 6, 1, 0.1}});
}

TEST_CASE("engines: SGLang's server info") {
  const auto info = parse_sglang_info(
      R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":4,"load_balance_method":"follow_bootstrap_room","version":"0.5.6"})");
  REQUIRE(info.has_value());
  CHECK(info->disaggregation_mode == "prefill");
  CHECK(info->bootstrap_port == 8998);
  CHECK(info->dp_size == 4);
  CHECK(info->load_balance_method == "follow_bootstrap_room");
  CHECK_FALSE(parse_sglang_info(R"({"detail":"Not Found"})").has_value());
}

TEST_CASE("engines: llama.cpp's slots, metrics and props") {
  CHECK(
      parse_llamacpp_slots(
          R"([{"id":0,"n_ctx":4096,"is_processing":true,"next_token":{"n_decoded":3}},{"id":1,"is_processing":false}])") ==
      std::vector<RankLoad>{{0, 1, std::nullopt, std::nullopt}});
  CHECK(parse_llamacpp_slots(R"({"error":{"code":501}})").empty());
  CHECK(parse_llamacpp_metrics("llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n") ==
        std::vector<RankLoad>{{0, 2, 3, std::nullopt}});
  const auto props = parse_llamacpp_props(
      R"({"default_generation_settings":{"n_ctx":8192},"total_slots":4,"chat_template":"{{ x }}","build_info":"b1"})");
  REQUIRE(props.has_value());
  CHECK(props->slots == 4);
  CHECK(props->context_length == 8192);
  CHECK_FALSE(parse_llamacpp_props("{}").has_value());
}

TEST_CASE("engines: labels are read with their escapes, and by whole names") {
  CHECK(label(R"(model_name="a=\"b\",c\\", engine="3")", "engine") == "3");
  CHECK(label(R"(model_name="a=\"b\",c\\",engine="3")", "model_name") == R"(a="b",c\)");
  CHECK_FALSE(label(R"(xengine="3")", "engine").has_value());
  CHECK_FALSE(label(R"(engine=3)", "engine").has_value());
}

TEST_CASE("engines: rendered prompts, with what stands for media") {
  const auto chat = parse_rendered(
      R"({"token_ids":[1, 2,3,4],"features":{"mm_hashes":{"image":["h2","h1"]},"mm_placeholders":{"image":[{"offset":3,"length":1},{"offset":1,"length":2}]}}})");
  REQUIRE(chat.has_value());
  CHECK(chat->tokens == std::vector<std::uint32_t>{1, 2, 3, 4});
  REQUIRE(chat->media.size() == 2);
  CHECK(chat->media[0].token == 1);
  CHECK(chat->media[0].hash == "h1");
  CHECK(parse_rendered(R"([{"token_ids":[5]}])")->tokens == std::vector<std::uint32_t>{5});
  CHECK(parse_rendered(R"({"count":2,"tokens":[7,8]})")->tokens.size() == 2);
  for (
      const auto* bad :
      {"", "{}", R"([{"token_ids":[1]},{"token_ids":[2]}])", R"({"token_ids":[1,]})",
       R"({"token_ids":[-1]})", R"({"token_ids":[4294967296]})", R"({"token_ids":[1.5]})",
       R"({"token_ids":["1"]})", R"({"token_ids":[1],"features":{"mm_hashes":{"image":["h"]}}})",
       R"({"token_ids":[1],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":1}]}}})"})
    CHECK_FALSE(parse_rendered(bad).has_value());
  CHECK(parse_token_ids(" [ ] ")->empty());
  CHECK_FALSE(parse_token_ids("[1] 2").has_value());
  CHECK_FALSE(parse_token_ids("[[1]]").has_value());
  CHECK(parse_models(
            R"({"data":[{"id":"base","parent":null},{"id":"ad","root":"/f","parent":"base"}]})")
            ->at(1)
            .is_adapter);
}

TEST_CASE("engines: the table") {
  for (const auto api : {WireApi::kChat, WireApi::kCompletion}) {
    CHECK(pins_rank(dialect(EngineKind::kVllm), api));
    CHECK(pins_rank(dialect(EngineKind::kSglang), api));
    CHECK_FALSE(pins_rank(dialect(EngineKind::kLlamaCpp), api));
  }
  CHECK(pins_rank(dialect(EngineKind::kSglang), WireApi::kMessages));
  CHECK_FALSE(pins_rank(dialect(EngineKind::kSglang), WireApi::kResponses));
  CHECK_FALSE(pins_rank(dialect(EngineKind::kVllm), WireApi::kMessages));
  CHECK(engine_kind("vllm") == EngineKind::kVllm);
  CHECK(engine_kind("llamacpp") == EngineKind::kLlamaCpp);
  CHECK_FALSE(engine_kind("VLLM").has_value());
  CHECK(dialect(EngineKind::kSglang).pd == PdProtocol::kConcurrent);
  CHECK_FALSE(dialect(EngineKind::kLlamaCpp).kv_events);
  CHECK_FALSE(speaks(dialect(EngineKind::kLlamaCpp), WireApi::kPooling));
}

}  // namespace penstock::dialects
