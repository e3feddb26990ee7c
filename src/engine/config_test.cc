#include "engine/config.h"

#include <string>

#include <boost/json.hpp>

#include "engine/testing/random_checkpoint.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

namespace json = boost::json;

// The text of a good config with one key replaced; "" removes it.
std::string with(std::string_view key, std::string_view value) {
  CheckpointShape shape;
  shape.expert_groups = 3;
  shape.groups_kept = 2;
  json::object o = json::parse(config_json(shape)).as_object();
  if (value.empty()) {
    o.erase(key);
  } else {
    o[key] = json::parse(value);
  }
  return json::serialize(o);
}

}  // namespace

TEST_CASE("a complete config is read") {
  const auto config = parse_config(with("eos_token_id", "[1, 5]"));
  REQUIRE(config);
  CHECK(config->vocab_size == 97);
  CHECK(config->q_lora_rank == 0);
  CHECK(config->row_width() == 32);
  CHECK(config->expert_groups == 3);
  CHECK(config->groups_kept == 2);
  CHECK(config->eos == std::vector<TokenId>{1, 5});
  CHECK(config->window == std::vector<std::uint32_t>{0, 0, 0});
  CHECK(config->rope_pairs == RopePairs::kInterleaved);
}

TEST_CASE("variants are read") {
  CHECK(parse_config(with("q_lora_rank", "16"))->q_lora_rank == 16);
  CHECK(parse_config(with("hidden_size", "40.0"))->hidden_size == 40);
  CHECK(parse_config(with("eos_token_id", "7"))->eos == std::vector<TokenId>{7});
  CHECK(parse_config(with("rope_interleave", "false"))->rope_pairs == RopePairs::kHalves);
  CHECK(parse_config(with("n_routed_experts", "null"))->dense_layers == 3);
  CHECK(parse_config(with("sliding_window", "64"))->window ==
        std::vector<std::uint32_t>{64, 64, 64});
  CHECK(parse_config(with("rope_parameters", R"({"rope_theta": 500, "rope_type": "default"})"))
            ->rope_theta == 500);
}

TEST_CASE("a bad key is named") {
  struct Case {
    const char* key;
    const char* value;
    ErrorCode code = ErrorCode::kInvalidArgument;
  };
  for (const Case& c : {
           Case{"vocab_size", "0"},
           {"vocab_size", ""},
           {"vocab_size", "\"2048\""},
           {"vocab_size", "1e300"},
           {"hidden_size", "-40"},
           {"hidden_size", "40.5"},
           {"hidden_size", "999999999999999999999"},
           {"hidden_size", "[40]"},
           {"num_hidden_layers", "1000000000"},
           {"num_attention_heads", "0"},
           {"num_key_value_heads", "1", ErrorCode::kUnsupported},
           {"q_lora_rank", "0"},
           {"kv_lora_rank", ""},
           {"qk_rope_head_dim", "7"},
           {"rope_theta", "0"},
           {"rope_theta", "true"},
           {"rope_scaling", R"({"type": "yarn", "factor": 40})", ErrorCode::kUnsupported},
           {"rope_parameters", "3"},
           {"max_position_embeddings", "0"},
           {"rms_norm_eps", "-1"},
           {"tie_word_embeddings", "1"},
           {"hidden_act", "\"gelu\"", ErrorCode::kUnsupported},
           {"scoring_func", "\"softmax\"", ErrorCode::kUnsupported},
           {"topk_method", "\"greedy\"", ErrorCode::kUnsupported},
           {"attention_bias", "true", ErrorCode::kUnsupported},
           {"moe_layer_freq", "2", ErrorCode::kUnsupported},
           {"quantization_config", "{}", ErrorCode::kUnsupported},
           {"architectures", "[\"LlamaForCausalLM\"]", ErrorCode::kUnsupported},
           {"num_experts_per_tok", "7"},
           {"num_experts_per_tok", "5"},  // two groups of two experts are kept
           {"n_group", "4"},
           {"topk_group", "4"},
           {"routed_scaling_factor", "0"},
           {"eos_token_id", "97"},
           {"eos_token_id", "[-1]"},
           {"layer_types", "[\"full_attention\"]"},
           {"layer_types", "[\"full_attention\", \"full_attention\", 3]"},
           {"sliding_window", "0"},
       }) {
    CAPTURE(c.key);
    CAPTURE(c.value);
    const auto config = parse_config(with(c.key, c.value));
    REQUIRE(!config);
    CHECK(config.error().field == c.key);
    CHECK(config.error().code == c.code);
  }
  CHECK(parse_config(with("layer_types", R"(["sliding_attention", "full_attention",
        "full_attention"])"))
            .error()
            .field == "sliding_window");
}

TEST_CASE("what is not a JSON object is refused") {
  for (const char* text : {"", "{", "[]", "null", "{\"vocab_size\": 1} x", "{\"a\":1e999}"}) {
    CAPTURE(text);
    CHECK(!parse_config(text));
  }
  CHECK(!parse_config(std::string(100000, '[')));
}

}  // namespace penstock::engine
