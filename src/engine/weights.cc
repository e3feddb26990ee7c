#include "engine/weights.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/hash.h"
#include "engine/tensor.h"

namespace penstock::engine {
namespace {

constexpr std::size_t kConfigBytesMax = 1 << 20;

// Rows of a checkpoint matrix that become consecutive outputs.
struct Part {
  const Tensor* tensor;
  std::uint32_t rows;
};

PackedMatrix pack(std::initializer_list<Part> parts, std::uint32_t inputs) {
  std::uint32_t outputs = 0;
  WeightType type = WeightType::kBf16;
  for (const Part& part : parts) {
    outputs += part.rows;
    if (part.tensor->type == WeightType::kF32) type = WeightType::kF32;
  }
  PackedMatrix packed(outputs, inputs, type);
  std::uint32_t output = 0;
  for (const Part& part : parts) {
    for (std::uint32_t row = 0; row < part.rows; ++row, ++output) {
      for (std::uint32_t i = 0; i < inputs; ++i) {
        const std::size_t index = std::size_t{row} * inputs + i;
        packed.set(
            output, i,
            type == WeightType::kF32 ? part.tensor->wide_bits(index) : part.tensor->bits(index));
      }
    }
  }
  return packed;
}

class Loader {
 public:
  Loader(TensorReader reader, const ModelConfig& config)
      : reader_(std::move(reader)), config_(config) {}

  // Checks every tensor before anything is allocated for any of them.
  Result<Weights> load() {
    TRY_STATUS(check());
    Weights weights;
    TRY(Tensor embedding,
        reader_.read("model.embed_tokens.weight", {config_.vocab_size, config_.hidden_size}));
    if (config_.tied_embeddings) {
      weights.head = pack({{&embedding, config_.vocab_size}}, config_.hidden_size);
    } else {
      TRY(weights.head, matrix("lm_head.weight", config_.vocab_size, config_.hidden_size));
    }
    weights.embedding_type = embedding.type;
    weights.embedding = std::move(embedding.bytes);
    TRY(weights.final_norm, reader_.read_floats("model.norm.weight", config_.hidden_size));
    for (std::uint32_t i = 0; i < config_.layers; ++i) {
      prefix_ = fmt::format("model.layers.{}.", i);
      LayerWeights layer;
      TRY_STATUS(load_attention(layer));
      TRY_STATUS(load_feed_forward(layer, i));
      weights.layers.push_back(std::move(layer));
    }
    return weights;
  }

 private:
  Status check() {
    const ModelConfig& c = config_;
    const std::uint64_t hidden = c.hidden_size;
    TRY_STATUS(reader_.expect("model.embed_tokens.weight", {c.vocab_size, hidden}));
    TRY_STATUS(reader_.expect("model.norm.weight", {hidden}));
    if (!c.tied_embeddings) TRY_STATUS(reader_.expect("lm_head.weight", {c.vocab_size, hidden}));
    for (std::uint32_t i = 0; i < c.layers; ++i)
      TRY_STATUS(check_layer(i));
    std::vector<std::string> ignored;
    // A tied checkpoint may still carry the head; a layer after the last is for draft tokens.
    if (c.tied_embeddings) ignored.push_back("lm_head.weight");
    ignored.push_back(fmt::format("model.layers.{}.", c.layers));
    return reader_.check_all_used(ignored);
  }

  Status check_layer(std::uint32_t i) {
    const ModelConfig& c = config_;
    const std::string p = fmt::format("model.layers.{}.", i);
    const std::string a = p + "self_attn.";
    const std::uint64_t hidden = c.hidden_size;
    TRY_STATUS(reader_.expect(p + "input_layernorm.weight", {hidden}));
    TRY_STATUS(reader_.expect(p + "post_attention_layernorm.weight", {hidden}));
    if (c.q_lora_rank == 0) {
      TRY_STATUS(reader_.expect(a + "q_proj.weight", {c.query_width(), hidden}));
    } else {
      TRY_STATUS(reader_.expect(a + "q_a_proj.weight", {c.q_lora_rank, hidden}));
      TRY_STATUS(reader_.expect(a + "q_a_layernorm.weight", {c.q_lora_rank}));
      TRY_STATUS(reader_.expect(a + "q_b_proj.weight", {c.query_width(), c.q_lora_rank}));
    }
    TRY_STATUS(reader_.expect(a + "kv_a_proj_with_mqa.weight", {c.row_width(), hidden}));
    TRY_STATUS(reader_.expect(a + "kv_a_layernorm.weight", {c.kv_lora_rank}));
    TRY_STATUS(
        reader_.expect(a + "kv_b_proj.weight",
                       {std::uint64_t{c.heads} * (c.nope_width + c.value_width), c.kv_lora_rank}));
    TRY_STATUS(
        reader_.expect(a + "o_proj.weight", {hidden, std::uint64_t{c.heads} * c.value_width}));
    if (i < c.dense_layers) return check_feed_forward(p + "mlp.", c.dense_width);
    TRY_STATUS(reader_.expect(p + "mlp.gate.weight", {c.experts, hidden}));
    TRY_STATUS(reader_.expect(p + "mlp.gate.e_score_correction_bias", {c.experts}));
    if (c.shared_experts > 0) {
      TRY_STATUS(check_feed_forward(p + "mlp.shared_experts.",
                                    std::uint64_t{c.shared_experts} * c.expert_width));
    }
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      TRY_STATUS(check_feed_forward(fmt::format("{}mlp.experts.{}.", p, e), c.expert_width));
    }
    return {};
  }

  Status check_feed_forward(const std::string& p, std::uint64_t width) {
    TRY_STATUS(reader_.expect(p + "gate_proj.weight", {width, config_.hidden_size}));
    TRY_STATUS(reader_.expect(p + "up_proj.weight", {width, config_.hidden_size}));
    return reader_.expect(p + "down_proj.weight", {config_.hidden_size, width});
  }

  Result<PackedMatrix> matrix(const std::string& name, std::uint32_t outputs,
                              std::uint32_t inputs) {
    TRY(const Tensor tensor, reader_.read(name, {outputs, inputs}));
    return pack({{&tensor, outputs}}, inputs);
  }

  Status load_attention(LayerWeights& layer) {
    const ModelConfig& c = config_;
    const std::string a = prefix_ + "self_attn.";
    TRY(layer.attention_norm,
        reader_.read_floats(prefix_ + "input_layernorm.weight", c.hidden_size));
    const std::uint32_t q_outputs = c.q_lora_rank == 0 ? c.query_width() : c.q_lora_rank;
    const char* q_name = c.q_lora_rank == 0 ? "q_proj.weight" : "q_a_proj.weight";
    TRY(const Tensor q, reader_.read(a + q_name, {q_outputs, c.hidden_size}));
    TRY(const Tensor kv,
        reader_.read(a + "kv_a_proj_with_mqa.weight", {c.row_width(), c.hidden_size}));
    layer.attention_in = pack({{&q, q_outputs}, {&kv, c.row_width()}}, c.hidden_size);
    if (c.q_lora_rank != 0) {
      TRY(layer.q_norm, reader_.read_floats(a + "q_a_layernorm.weight", c.q_lora_rank));
      TRY(layer.q_out, matrix(a + "q_b_proj.weight", c.query_width(), c.q_lora_rank));
    }
    TRY(layer.kv_norm, reader_.read_floats(a + "kv_a_layernorm.weight", c.kv_lora_rank));
    TRY(layer.attention_out, matrix(a + "o_proj.weight", c.hidden_size, c.heads * c.value_width));
    return load_heads(layer, a + "kv_b_proj.weight");
  }

  // Splits kv_b_proj [heads][nope + value][rank] into its two matrices per head.
  Status load_heads(LayerWeights& layer, const std::string& name) {
    const ModelConfig& c = config_;
    const std::uint32_t per_head = c.nope_width + c.value_width;
    TRY(const Tensor kv_b, reader_.read(name, {std::uint64_t{c.heads} * per_head, c.kv_lora_rank}));
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      PackedMatrix key(c.kv_lora_rank, c.nope_width, kv_b.type);
      PackedMatrix value(c.value_width, c.kv_lora_rank, kv_b.type);
      for (std::uint32_t r = 0; r < per_head; ++r) {
        for (std::uint32_t i = 0; i < c.kv_lora_rank; ++i) {
          const std::uint32_t bits =
              kv_b.bits((std::size_t{h} * per_head + r) * c.kv_lora_rank + i);
          if (r < c.nope_width) {
            key.set(i, r, bits);
          } else {
            value.set(r - c.nope_width, i, bits);
          }
        }
      }
      layer.key_absorb.push_back(std::move(key));
      layer.value_expand.push_back(std::move(value));
    }
    return {};
  }

  Result<FeedForward> feed_forward(const std::string& p, std::uint32_t width) {
    const std::uint32_t hidden = config_.hidden_size;
    FeedForward f;
    f.width = width;
    TRY(const Tensor gate, reader_.read(p + "gate_proj.weight", {width, hidden}));
    TRY(const Tensor up, reader_.read(p + "up_proj.weight", {width, hidden}));
    f.gate_up = pack({{&gate, width}, {&up, width}}, hidden);
    TRY(f.down, matrix(p + "down_proj.weight", hidden, width));
    return f;
  }

  Status load_feed_forward(LayerWeights& layer, std::uint32_t index) {
    const ModelConfig& c = config_;
    TRY(layer.feed_norm,
        reader_.read_floats(prefix_ + "post_attention_layernorm.weight", c.hidden_size));
    const std::string m = prefix_ + "mlp.";
    if (index < c.dense_layers) {
      TRY(layer.dense, feed_forward(m, c.dense_width));
      return {};
    }
    TRY(layer.router, matrix(m + "gate.weight", c.experts, c.hidden_size));
    TRY(layer.router_bias, reader_.read_floats(m + "gate.e_score_correction_bias", c.experts));
    if (c.shared_experts > 0) {
      TRY(layer.dense, feed_forward(m + "shared_experts.", c.shared_experts * c.expert_width));
    }
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      TRY(FeedForward expert, feed_forward(fmt::format("{}experts.{}.", m, e), c.expert_width));
      layer.experts.push_back(std::move(expert));
    }
    return {};
  }

  TensorReader reader_;
  const ModelConfig& config_;
  std::string prefix_;
};

}  // namespace

std::size_t Weights::common_bytes() const {
  std::size_t bytes = head.bytes();
  for (const LayerWeights& layer : layers) {
    bytes += layer.attention_in.bytes() + layer.q_out.bytes() + layer.attention_out.bytes();
    for (const PackedMatrix& m : layer.key_absorb)
      bytes += m.bytes();
    for (const PackedMatrix& m : layer.value_expand)
      bytes += m.bytes();
    bytes += layer.dense.gate_up.bytes() + layer.dense.down.bytes() + layer.router.bytes();
  }
  return bytes;
}

std::size_t Weights::expert_bytes() const {
  for (const LayerWeights& layer : layers) {
    if (!layer.experts.empty()) {
      return layer.experts[0].gate_up.bytes() + layer.experts[0].down.bytes();
    }
  }
  return 0;
}

std::uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0
             ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size)
             : UINT64_MAX;
}

Result<ModelConfig> load_config(const std::string& checkpoint_dir) {
  const std::string path = checkpoint_dir + "/config.json";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return fail(ErrorCode::kIo, fmt::format("opening {}: {}", path, std::strerror(errno)));
  }
  std::string text(kConfigBytesMax + 1, '\0');
  std::size_t size = 0;
  ssize_t n = 1;
  while (size < text.size() && (n = ::read(fd, text.data() + size, text.size() - size)) > 0) {
    size += static_cast<std::size_t>(n);
  }
  const int error = errno;
  close(fd);
  if (n < 0) return fail(ErrorCode::kIo, fmt::format("reading {}: {}", path, std::strerror(error)));
  if (size > kConfigBytesMax) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} is larger than 1 MiB", path));
  }
  auto config = parse_config(std::string_view(text).substr(0, size));
  if (!config) return std::unexpected(std::move(config).error().within(checkpoint_dir));
  return config;
}

Result<std::string> weights_digest(const std::string& checkpoint_dir) {
  const std::array<std::uint8_t, 32> no_secret{};
  KeyedHasher hasher(no_secret);
  hasher.begin();
  std::vector<std::uint8_t> buffer(std::size_t{1} << 20);
  for (const char* name : {"/config.json", "/model.safetensors"}) {
    const std::string path = checkpoint_dir + name;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(errno)));
    ssize_t n = 0;
    std::uint64_t size = 0;
    while ((n = ::read(fd, buffer.data(), buffer.size())) > 0) {
      hasher.add(std::span(buffer).first(static_cast<std::size_t>(n)));
      size += static_cast<std::uint64_t>(n);
    }
    const int error = errno;
    close(fd);
    if (n < 0) {
      return fail(ErrorCode::kIo, fmt::format("reading {}: {}", path, std::strerror(error)));
    }
    hasher.add_field(std::to_string(size));  // where one file ends
  }
  std::string hex;
  for (const std::uint8_t byte : hasher.finish().bytes)
    hex += fmt::format("{:02x}", byte);
  return hex;
}

Result<Weights> load_weights(const std::string& checkpoint_dir, const ModelConfig& config) {
  TRY(TensorFile file, TensorFile::open(checkpoint_dir + "/model.safetensors"));
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.index())
    bytes += tensor.end - tensor.begin;
  if (bytes > physical_memory()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} holds {} MiB of weights, this machine has {} MiB of memory",
                            file.path(), bytes >> 20, physical_memory() >> 20));
  }
  return Loader(TensorReader(std::move(file)), config).load();
}

}  // namespace penstock::engine
