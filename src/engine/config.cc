#include "engine/config.h"

#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <boost/json.hpp>

namespace penstock::engine {
namespace {

namespace json = boost::json;

// Limits are generous for any published model and keep sizes far from overflow.
constexpr std::int64_t kMaxWidth = 1 << 18;
constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHeads = 1024;
constexpr std::int64_t kMaxHeadWidth = 1 << 14;
constexpr std::int64_t kMaxExperts = 1 << 14;
constexpr std::int64_t kMaxContext = 1 << 21;

std::unexpected<Error> bad(std::string_view key, std::string message) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("config.json: \"{}\" {}", key, message),
              std::string(key));
}

std::unexpected<Error> unsupported(std::string_view key, std::string_view what) {
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("config.json: \"{}\": {} is not supported by the embedded engine", key, what),
      std::string(key));
}

// Reads typed values; the first error sticks and later reads return defaults.
class Reader {
 public:
  explicit Reader(const json::object& object) : object_(object) {}

  const json::value* find(std::string_view key) const {
    const json::value* v = object_.if_contains(key);
    return v == nullptr || v->is_null() ? nullptr : v;
  }

  std::uint32_t integer(std::string_view key, std::int64_t low, std::int64_t high) {
    const json::value* v = find(key);
    if (v == nullptr) {
      keep(bad(key, "is missing"));
      return static_cast<std::uint32_t>(low);
    }
    return integer_of(*v, key, low, high);
  }
  std::uint32_t integer_or(std::string_view key, std::uint32_t otherwise, std::int64_t low,
                           std::int64_t high) {
    const json::value* v = find(key);
    return v == nullptr ? otherwise : integer_of(*v, key, low, high);
  }
  std::uint32_t integer_of(const json::value& v, std::string_view key, std::int64_t low,
                           std::int64_t high) {
    // 32.0 is a number that JSON writers produce for an integer.
    const double number = v.is_int64()    ? static_cast<double>(v.get_int64())
                          : v.is_uint64() ? static_cast<double>(v.get_uint64())
                          : v.is_double() ? v.get_double()
                                          : std::nan("");
    if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) ||
        number != std::floor(number)) {
      keep(bad(key, fmt::format("must be an integer from {} to {}", low, high)));
      return static_cast<std::uint32_t>(low);
    }
    return static_cast<std::uint32_t>(number);
  }
  float number_or(std::string_view key, double otherwise, double low, double high) {
    const json::value* v = find(key);
    if (v == nullptr) return static_cast<float>(otherwise);
    const double number = v->is_double()   ? v->get_double()
                          : v->is_int64()  ? static_cast<double>(v->get_int64())
                          : v->is_uint64() ? static_cast<double>(v->get_uint64())
                                           : std::nan("");
    if (!(number >= low && number <= high)) {
      keep(bad(key, fmt::format("must be a number from {} to {}", low, high)));
      return static_cast<float>(otherwise);
    }
    return static_cast<float>(number);
  }
  bool flag_or(std::string_view key, bool otherwise) {
    const json::value* v = find(key);
    if (v == nullptr) return otherwise;
    if (!v->is_bool()) {
      keep(bad(key, "must be true or false"));
      return otherwise;
    }
    return v->get_bool();
  }
  // Refuses the key unless it is absent, null or exactly this text.
  void only(std::string_view key, std::string_view text) {
    const json::value* v = find(key);
    if (v == nullptr) return;
    if (!v->is_string()) return keep(bad(key, "must be a string"));
    if (v->get_string() != text) {
      keep(unsupported(key, fmt::format("\"{}\"", std::string_view(v->get_string()))));
    }
  }
  void keep(std::unexpected<Error> error) {
    if (status_) status_ = std::move(error);
  }
  Status status() const { return status_; }
  const json::object& object() const { return object_; }

 private:
  const json::object& object_;
  Status status_;
};

void check_family(Reader& r) {
  bool known = false;
  if (const json::value* v = r.find("architectures"); v != nullptr && v->is_array()) {
    for (const json::value& name : v->get_array()) {
      known = known || (name.is_string() && name.get_string() == "DeepseekV3ForCausalLM");
    }
  } else if (const json::value* type = r.find("model_type"); type != nullptr) {
    known = type->is_string() && type->get_string() == "deepseek_v3";
  }
  if (!known) r.keep(unsupported("architectures", "a model other than DeepseekV3ForCausalLM"));
  if (r.find("quantization_config")) {
    r.keep(unsupported("quantization_config", "a quantised checkpoint"));
  }
  r.only("hidden_act", "silu");
  r.only("scoring_func", "sigmoid");
  r.only("topk_method", "noaux_tc");
  if (r.flag_or("attention_bias", false)) r.keep(unsupported("attention_bias", "true"));
  if (r.integer_or("moe_layer_freq", 1, 0, kMaxLayers) != 1) {
    r.keep(unsupported("moe_layer_freq", "a value other than 1"));
  }
}

void read_attention(Reader& r, ModelConfig& c) {
  c.heads = r.integer("num_attention_heads", 1, kMaxHeads);
  if (r.integer_or("num_key_value_heads", c.heads, 1, kMaxHeads) != c.heads) {
    r.keep(unsupported("num_key_value_heads", "a count other than num_attention_heads"));
  }
  c.q_lora_rank = r.integer_or("q_lora_rank", 0, 1, kMaxWidth);
  c.kv_lora_rank = r.integer("kv_lora_rank", 1, kMaxHeadWidth);
  c.nope_width = r.integer("qk_nope_head_dim", 1, kMaxHeadWidth);
  c.rope_width = r.integer("qk_rope_head_dim", 2, kMaxHeadWidth);
  c.value_width = r.integer("v_head_dim", 1, kMaxHeadWidth);
  if (c.rope_width % 2 != 0) r.keep(bad("qk_rope_head_dim", "must be even"));
  c.rope_pairs = r.flag_or("rope_interleave", true) ? RopePairs::kInterleaved : RopePairs::kHalves;
}

// Either the old keys (rope_theta, rope_scaling) or one object rope_parameters.
void read_rope(Reader& r, ModelConfig& c) {
  if (r.find("rope_scaling")) r.keep(unsupported("rope_scaling", "scaled rotary embedding"));
  c.rope_theta = r.number_or("rope_theta", 10000.0, 1.0, 1e12);
  const json::value* v = r.find("rope_parameters");
  if (v == nullptr) return;
  if (!v->is_object()) return r.keep(bad("rope_parameters", "must be an object"));
  Reader inner(v->get_object());
  inner.only("rope_type", "default");
  c.rope_theta = inner.number_or("rope_theta", static_cast<double>(c.rope_theta), 1.0, 1e12);
  if (const Status status = inner.status(); !status) r.keep(std::unexpected(status.error()));
}

void read_windows(Reader& r, ModelConfig& c) {
  c.window.assign(c.layers, 0);
  const json::value* types = r.find("layer_types");
  const std::uint32_t window = r.integer_or("sliding_window", 0, 1, kMaxContext);
  if (types == nullptr) {
    // A window without a list of layers is every layer's, as for the models that spell it so.
    if (window != 0) c.window.assign(c.layers, window);
    return;
  }
  if (!types->is_array() || types->get_array().size() != c.layers) {
    return r.keep(bad("layer_types", "must list one type per layer"));
  }
  for (std::uint32_t i = 0; i < c.layers; ++i) {
    const json::value& type = types->get_array()[i];
    if (type.is_string() && type.get_string() == "sliding_attention") {
      if (window == 0) return r.keep(bad("sliding_window", "is missing, layer_types needs it"));
      c.window[i] = window;
    } else if (!type.is_string() || type.get_string() != "full_attention") {
      return r.keep(bad("layer_types", "must hold full_attention or sliding_attention only"));
    }
  }
}

void read_experts(Reader& r, ModelConfig& c) {
  c.dense_width = r.integer("intermediate_size", 1, kMaxWidth);
  c.experts = r.integer_or("n_routed_experts", 0, 0, kMaxExperts);
  c.dense_layers = c.layers;
  if (c.experts == 0) return;
  c.dense_layers = r.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  if (c.dense_layers > c.layers) c.dense_layers = c.layers;
  c.expert_width = r.integer("moe_intermediate_size", 1, kMaxWidth);
  c.shared_experts = r.integer_or("n_shared_experts", 0, 0, 64);
  c.experts_per_token = r.integer("num_experts_per_tok", 1, 256);
  c.expert_groups = r.integer_or("n_group", 1, 1, kMaxExperts);
  c.groups_kept = r.integer_or("topk_group", c.expert_groups, 1, kMaxExperts);
  c.normalize_weights = r.flag_or("norm_topk_prob", true);
  c.routed_scale = r.number_or("routed_scaling_factor", 1.0, 1e-6, 1e6);
  if (c.experts % c.expert_groups != 0) r.keep(bad("n_group", "must divide n_routed_experts"));
  if (c.groups_kept > c.expert_groups) r.keep(bad("topk_group", "must be at most n_group"));
  if (c.experts_per_token > c.experts / c.expert_groups * c.groups_kept) {
    r.keep(bad("num_experts_per_tok", "is more than the experts of topk_group groups"));
  }
}

void read_eos(Reader& r, ModelConfig& c) {
  const json::value* v = r.find("eos_token_id");
  if (v == nullptr) return;
  const std::int64_t last = static_cast<std::int64_t>(c.vocab_size) - 1;
  if (!v->is_array()) {
    c.eos.push_back(r.integer_of(*v, "eos_token_id", 0, last));
    return;
  }
  if (v->get_array().size() > 64) return r.keep(bad("eos_token_id", "has more than 64 entries"));
  for (const json::value& id : v->get_array()) {
    c.eos.push_back(r.integer_of(id, "eos_token_id", 0, last));
  }
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = 32;
  const json::value root = json::parse(text, error, {}, options);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("config.json is not valid JSON: {}", error.message()));
  }
  if (!root.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "config.json must hold one JSON object");
  }
  Reader r(root.get_object());
  check_family(r);
  ModelConfig c;
  c.vocab_size = r.integer("vocab_size", 1, kMaxVocabulary);
  c.hidden_size = r.integer("hidden_size", 1, kMaxWidth);
  c.layers = r.integer("num_hidden_layers", 1, kMaxLayers);
  c.context_length = r.integer("max_position_embeddings", 1, kMaxContext);
  c.norm_epsilon = r.number_or("rms_norm_eps", 1e-6, 1e-12, 1.0);
  c.tied_embeddings = r.flag_or("tie_word_embeddings", false);
  read_attention(r, c);
  read_rope(r, c);
  read_experts(r, c);
  TRY_STATUS(r.status());
  read_windows(r, c);
  read_eos(r, c);
  TRY_STATUS(r.status());
  return c;
}

}  // namespace penstock::engine
