#include "engine/testing/random_checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/check.h"
#include "base/rng.h"

namespace penstock::engine {
namespace {

namespace json = boost::json;

struct Entry {
  std::string name;
  std::vector<std::uint64_t> shape;
  double center = 0;
  double spread = 0;
};

class Entries {
 public:
  void matrix(std::string name, std::uint64_t outputs, std::uint64_t inputs) {
    // Keeps the variance of what goes through about the same.
    list.push_back(
        {std::move(name), {outputs, inputs}, 0, std::sqrt(3.0 / static_cast<double>(inputs))});
  }
  void norm(std::string name, std::uint64_t n) { list.push_back({std::move(name), {n}, 1, 0.2}); }
  void feed_forward(const std::string& p, std::uint64_t hidden, std::uint64_t width) {
    matrix(p + "gate_proj.weight", width, hidden);
    matrix(p + "up_proj.weight", width, hidden);
    matrix(p + "down_proj.weight", hidden, width);
  }
  std::vector<Entry> list;
};

void add_layer(Entries& e, const CheckpointShape& s, std::uint32_t i) {
  const std::string p = fmt::format("model.layers.{}.", i);
  const std::string a = p + "self_attn.";
  const std::uint32_t queries = s.heads * (s.nope_width + s.rope_width);
  e.norm(p + "input_layernorm.weight", s.hidden_size);
  e.norm(p + "post_attention_layernorm.weight", s.hidden_size);
  if (s.q_lora_rank == 0) {
    e.matrix(a + "q_proj.weight", queries, s.hidden_size);
  } else {
    e.matrix(a + "q_a_proj.weight", s.q_lora_rank, s.hidden_size);
    e.norm(a + "q_a_layernorm.weight", s.q_lora_rank);
    e.matrix(a + "q_b_proj.weight", queries, s.q_lora_rank);
  }
  e.matrix(a + "kv_a_proj_with_mqa.weight", s.kv_lora_rank + s.rope_width, s.hidden_size);
  e.norm(a + "kv_a_layernorm.weight", s.kv_lora_rank);
  e.matrix(a + "kv_b_proj.weight", s.heads * (s.nope_width + s.value_width), s.kv_lora_rank);
  e.matrix(a + "o_proj.weight", s.hidden_size, s.heads * s.value_width);
  if (s.experts == 0 || i < s.dense_layers) {
    e.feed_forward(p + "mlp.", s.hidden_size, s.dense_width);
    return;
  }
  e.matrix(p + "mlp.gate.weight", s.experts, s.hidden_size);
  e.list.push_back({p + "mlp.gate.e_score_correction_bias", {s.experts}, 0, 0.1});
  if (s.shared_experts > 0) {
    e.feed_forward(p + "mlp.shared_experts.", s.hidden_size, s.shared_experts * s.expert_width);
  }
  for (std::uint32_t x = 0; x < s.experts; ++x) {
    e.feed_forward(fmt::format("{}mlp.experts.{}.", p, x), s.hidden_size, s.expert_width);
  }
}

Entries entries_of(const CheckpointShape& s) {
  Entries e;
  e.list.push_back({"model.embed_tokens.weight", {s.vocab_size, s.hidden_size}, 0, 1});
  if (!s.tied_embeddings) e.matrix("lm_head.weight", s.vocab_size, s.hidden_size);
  e.norm("model.norm.weight", s.hidden_size);
  for (std::uint32_t i = 0; i < s.layers; ++i)
    add_layer(e, s, i);
  return e;
}

std::uint64_t count(const Entry& e) {
  std::uint64_t n = 1;
  for (const std::uint64_t d : e.shape)
    n *= d;
  return n;
}

void append(std::string& out, float value, StoredType type) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto put = [&](std::uint32_t word, int bytes) {
    for (int i = 0; i < bytes; ++i)
      out.push_back(static_cast<char>(word >> (8 * i) & 0xFF));
  };
  if (type == StoredType::kF32) return put(bits, 4);
  if (type == StoredType::kBf16) return put(bits >> 16, 2);
  // Half precision, cut; magnitudes below 2^-14 become zero.
  const std::uint32_t exponent = bits >> 23 & 0xFF;
  const std::uint32_t sign = bits >> 16 & 0x8000;
  if (exponent < 113) return put(sign, 2);
  put(sign | (exponent - 112) << 10 | (bits >> 13 & 0x3FF), 2);
}

}  // namespace

std::string config_json(const CheckpointShape& s) {
  json::object o;
  o["architectures"] = json::array{"DeepseekV3ForCausalLM"};
  o["model_type"] = "deepseek_v3";
  o["hidden_act"] = "silu";
  o["vocab_size"] = s.vocab_size;
  o["hidden_size"] = s.hidden_size;
  o["num_hidden_layers"] = s.layers;
  o["num_attention_heads"] = s.heads;
  o["num_key_value_heads"] = s.heads;
  if (s.q_lora_rank == 0) {
    o["q_lora_rank"] = nullptr;
  } else {
    o["q_lora_rank"] = s.q_lora_rank;
  }
  o["kv_lora_rank"] = s.kv_lora_rank;
  o["qk_nope_head_dim"] = s.nope_width;
  o["qk_rope_head_dim"] = s.rope_width;
  o["v_head_dim"] = s.value_width;
  o["rope_interleave"] = s.interleaved;
  o["rope_theta"] = 1000.0;
  o["intermediate_size"] = s.dense_width;
  o["max_position_embeddings"] = s.context_length;
  o["rms_norm_eps"] = 1e-6;
  o["tie_word_embeddings"] = s.tied_embeddings;
  if (s.experts > 0) {
    o["first_k_dense_replace"] = s.dense_layers;
    o["n_routed_experts"] = s.experts;
    o["n_shared_experts"] = s.shared_experts;
    o["num_experts_per_tok"] = s.experts_per_token;
    o["moe_intermediate_size"] = s.expert_width;
    o["n_group"] = s.expert_groups;
    o["topk_group"] = s.groups_kept;
    o["norm_topk_prob"] = s.normalize_weights;
    o["routed_scaling_factor"] = s.routed_scale;
    o["scoring_func"] = "sigmoid";
    o["topk_method"] = "noaux_tc";
  }
  if (s.window > 0) {
    o["sliding_window"] = s.window;
    json::array types;
    for (std::uint32_t i = 0; i < s.layers; ++i) {
      const bool sliding = std::ranges::find(s.window_layers, i) != s.window_layers.end();
      types.push_back(sliding ? "sliding_attention" : "full_attention");
    }
    o["layer_types"] = types;
  }
  json::array eos;
  for (const std::uint32_t id : s.eos)
    eos.push_back(id);
  o["eos_token_id"] = eos;
  return json::serialize(o);
}

Status write_checkpoint(const std::string& folder, const CheckpointShape& shape,
                        std::uint64_t seed) {
  const Entries entries = entries_of(shape);
  const std::uint64_t element = shape.type == StoredType::kF32 ? 4 : 2;
  const char* dtype = shape.type == StoredType::kF32   ? "F32"
                      : shape.type == StoredType::kF16 ? "F16"
                                                       : "BF16";
  json::object header;
  std::uint64_t offset = 0;
  for (const Entry& e : entries.list) {
    json::array dimensions;
    for (const std::uint64_t d : e.shape)
      dimensions.push_back(d);
    const std::uint64_t end = offset + count(e) * element;
    header[e.name] = {{"dtype", dtype}, {"shape", dimensions}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string head = json::serialize(header);
  head.resize((head.size() + 7) / 8 * 8, ' ');
  std::ofstream file(folder + "/model.safetensors", std::ios::binary);
  for (int i = 0; i < 8; ++i)
    file.put(static_cast<char>(head.size() >> (8 * i) & 0xFF));
  file << head;
  Rng rng(seed);
  std::string bytes;
  for (const Entry& e : entries.list) {
    bytes.clear();
    for (std::uint64_t i = 0; i < count(e); ++i) {
      const double value = e.center + e.spread * (2 * rng.uniform() - 1);
      append(bytes, static_cast<float>(value), shape.type);
    }
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::ofstream config(folder + "/config.json");
  config << config_json(shape);
  file.flush();
  config.flush();
  if (!file || !config) return fail(ErrorCode::kIo, "writing a random checkpoint to " + folder);
  return {};
}

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "penstock-XXXXXX").string();
  ENSURE(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace penstock::engine
