#include "engine/testing/reference_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "engine/tensor.h"
#include "engine/weights.h"

namespace penstock::engine {
namespace {

using Vector = std::vector<double>;

struct Reference {
  ModelConfig c;
  std::map<std::string, Vector> tensors;
  KvDtype kv_dtype = KvDtype::kF32;

  const Vector& weight(const std::string& name) const { return tensors.at(name + ".weight"); }

  Vector apply(const std::string& name, const Vector& x) const {
    const Vector& w = weight(name);
    Vector y(w.size() / x.size());
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t i = 0; i < x.size(); ++i)
        y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
  }
  Vector norm(const std::string& name, const Vector& x) const {
    double sum = 0;
    for (const double v : x)
      sum += v * v;
    const double factor =
        1 / std::sqrt(sum / static_cast<double>(x.size()) + static_cast<double>(c.norm_epsilon));
    Vector y = weight(name);
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i] *= x[i] * factor;
    return y;
  }
  void rotate(double* x, std::size_t position) const {
    const std::uint32_t half = c.rope_width / 2;
    for (std::uint32_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(static_cast<double>(c.rope_theta), -2.0 * i / c.rope_width);
      const bool interleaved = c.rope_pairs == RopePairs::kInterleaved;
      double& a = x[interleaved ? 2 * i : i];
      double& b = x[interleaved ? 2 * i + 1 : i + half];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
  Vector feed_forward(const std::string& p, const Vector& x) const {
    Vector gate = apply(p + "gate_proj", x);
    const Vector up = apply(p + "up_proj", x);
    for (std::size_t i = 0; i < gate.size(); ++i)
      gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return apply(p + "down_proj", gate);
  }

  Vector experts(const std::string& p, const Vector& x) const {
    Vector scores = apply(p + "gate", x);
    const Vector& bias = tensors.at(p + "gate.e_score_correction_bias");
    for (double& s : scores)
      s = 1 / (1 + std::exp(-s));
    const std::uint32_t size = c.experts / c.expert_groups;
    std::vector<std::uint32_t> groups(c.expert_groups);
    std::iota(groups.begin(), groups.end(), 0U);
    const auto group_score = [&](std::uint32_t g) {
      Vector in_group;
      for (std::uint32_t i = 0; i < size; ++i)
        in_group.push_back(scores[g * size + i] + bias[g * size + i]);
      std::ranges::sort(in_group, std::greater<>());
      return in_group[0] + (size > 1 ? in_group[1] : 0);
    };
    std::ranges::sort(groups, [&](auto a, auto b) {
      const double first = group_score(a);
      const double second = group_score(b);
      return first != second ? first > second : a < b;
    });
    std::vector<std::uint32_t> ids;
    for (std::uint32_t g = 0; g < c.groups_kept; ++g) {
      for (std::uint32_t i = 0; i < size; ++i)
        ids.push_back(groups[g] * size + i);
    }
    std::ranges::sort(ids,
                      [&](auto a, auto b) { return scores[a] + bias[a] > scores[b] + bias[b]; });
    ids.resize(c.experts_per_token);
    double sum = 0;
    for (const auto id : ids)
      sum += scores[id];
    Vector y(x.size());
    if (c.shared_experts > 0) y = feed_forward(p + "shared_experts.", x);
    for (const auto id : ids) {
      const double share = scores[id] / (c.normalize_weights ? sum : 1);
      const Vector out = feed_forward(fmt::format("{}experts.{}.", p, id), x);
      for (std::size_t i = 0; i < y.size(); ++i) {
        y[i] += share * static_cast<double>(c.routed_scale) * out[i];
      }
    }
    return y;
  }

  Vector cached_row(const std::string& a, const Vector& x, std::size_t position) const {
    Vector row = apply(a + "kv_a_proj_with_mqa", x);
    const Vector latent = norm(a + "kv_a_layernorm", {row.begin(), row.begin() + c.kv_lora_rank});
    std::ranges::copy(latent, row.begin());
    rotate(row.data() + c.kv_lora_rank, position);
    for (double& v : row) {
      if (kv_dtype == KvDtype::kF32) continue;
      std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(v));
      bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000U;
      v = static_cast<double>(std::bit_cast<float>(bits));
    }
    return row;
  }

  // Attention output of the last row of xs.
  Vector attend(const std::string& a, const std::vector<Vector>& rows, const Vector& x,
                std::uint32_t window) const {
    const std::size_t position = rows.size() - 1;
    Vector q = c.q_lora_rank == 0
                   ? apply(a + "q_proj", x)
                   : apply(a + "q_b_proj", norm(a + "q_a_layernorm", apply(a + "q_a_proj", x)));
    const std::uint32_t width = c.nope_width + c.rope_width;
    Vector values(std::size_t{c.heads} * c.value_width);
    const std::size_t start = window == 0 || position < window ? 0 : position + 1 - window;
    for (std::uint32_t h = 0; h < c.heads; ++h)
      rotate(q.data() + h * width + c.nope_width, position);
    std::vector<Vector> expanded;
    for (std::size_t t = start; t <= position; ++t) {
      expanded.push_back(
          apply(a + "kv_b_proj", {rows[t].begin(), rows[t].begin() + c.kv_lora_rank}));
    }
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      const std::size_t offset = std::size_t{h} * (c.nope_width + c.value_width);
      Vector shares;
      double sum = 0;
      for (std::size_t t = start; t <= position; ++t) {
        double dot = 0;
        for (std::uint32_t i = 0; i < c.nope_width; ++i) {
          dot += q[h * width + i] * expanded[t - start][offset + i];
        }
        for (std::uint32_t i = 0; i < c.rope_width; ++i) {
          dot += q[h * width + c.nope_width + i] * rows[t][c.kv_lora_rank + i];
        }
        shares.push_back(std::exp(dot / std::sqrt(static_cast<double>(width))));
        sum += shares.back();
      }
      for (std::size_t t = 0; t < shares.size(); ++t) {
        for (std::uint32_t i = 0; i < c.value_width; ++i) {
          values[h * c.value_width + i] += shares[t] / sum * expanded[t][offset + c.nope_width + i];
        }
      }
    }
    return apply(a + "o_proj", values);
  }

  std::vector<Vector> run(const std::vector<TokenId>& tokens) const {
    std::vector<Vector> xs;
    const Vector& table = weight("model.embed_tokens");
    for (const TokenId t : tokens) {
      const auto begin = table.begin() + static_cast<std::ptrdiff_t>(t) * c.hidden_size;
      xs.emplace_back(begin, begin + c.hidden_size);
    }
    const auto add = [](Vector& x, const Vector& y) {
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] += y[i];
    };
    for (std::uint32_t layer = 0; layer < c.layers; ++layer) {
      const std::string p = fmt::format("model.layers.{}.", layer);
      std::vector<Vector> rows;
      for (std::size_t t = 0; t < xs.size(); ++t) {
        const Vector x = norm(p + "input_layernorm", xs[t]);
        rows.push_back(cached_row(p + "self_attn.", x, t));
        add(xs[t], attend(p + "self_attn.", rows, x, c.window[layer]));
        const Vector y = norm(p + "post_attention_layernorm", xs[t]);
        add(xs[t], layer < c.dense_layers ? feed_forward(p + "mlp.", y) : experts(p + "mlp.", y));
      }
    }
    for (Vector& x : xs) {
      x = apply(c.tied_embeddings ? "model.embed_tokens" : "lm_head", norm("model.norm", x));
    }
    return xs;
  }
};

}  // namespace

Result<std::vector<std::vector<double>>> reference_logits(const std::string& checkpoint_dir,
                                                          const std::vector<TokenId>& tokens,
                                                          KvDtype kv_dtype) {
  Reference reference;
  reference.kv_dtype = kv_dtype;
  TRY(reference.c, load_config(checkpoint_dir));
  TRY(const TensorFile file, TensorFile::open(checkpoint_dir + "/model.safetensors"));
  for (const auto& [name, info] : file.index()) {
    TRY(TensorFile again, TensorFile::open(file.path()));
    TensorReader reader(std::move(again));
    Tensor tensor;
    std::size_t count = 0;
    if (info.shape.size() == 1) {
      TRY(tensor, reader.read(name, {info.shape[0]}));
      count = info.shape[0];
    } else {
      TRY(tensor, reader.read(name, {info.shape[0], info.shape[1]}));
      count = info.shape[0] * info.shape[1];
    }
    Vector& out = reference.tensors[name];
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(static_cast<double>(std::bit_cast<float>(tensor.wide_bits(i))));
    }
  }
  return reference.run(tokens);
}

}  // namespace penstock::engine
