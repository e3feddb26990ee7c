// The committed model against PyTorch: golden logits and greedy answers
// (tests/golden/nano/README.md).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>

#include <openssl/evp.h>
#include <boost/json.hpp>

#include "engine/engine.h"
#include "engine/model.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

namespace json = boost::json;

constexpr const char* kModel = "models/nano";
constexpr const char* kGolden = "tests/golden/nano";

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string sha256_hex(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  REQUIRE(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

template <typename T>
std::vector<T> numbers(const json::value& list) {
  std::vector<T> out;
  for (const json::value& v : list.as_array())
    out.push_back(v.to_number<T>());
  return out;
}

struct Golden {
  json::object index;
  std::vector<float> floats;
};

Golden load_golden() {
  const std::string index = slurp(std::string(kGolden) + "/logits.json");
  const std::string data = slurp(std::string(kGolden) + "/logits.bin");
  const std::string weights = slurp(std::string(kModel) + "/model.safetensors");
  REQUIRE(!index.empty());
  REQUIRE(!data.empty());
  REQUIRE(!weights.empty());
  Golden golden;
  golden.index = json::parse(index).as_object();
  // A new checkpoint needs new golden files; comparing with old ones would only look like a bug.
  REQUIRE(sha256_hex(weights) == std::string(golden.index["checkpoint_sha256"].as_string()));
  golden.floats.resize(data.size() / sizeof(float));
  std::memcpy(golden.floats.data(), data.data(), golden.floats.size() * sizeof(float));
  return golden;
}

// Positions of one sequence that differ by more than 1e-3 of the largest logit there, the worst of
// those, and the worst of the rest; all relative to the largest logit of the position.
struct Distance {
  std::size_t far = 0;
  double worst_far = 0;
  double worst = 0;
};

// A routing tie that goes the other way swaps one of a token's experts: that moves its logits, but
// the rest of the model still holds them near. Wrong weights or positions move them by their size.
constexpr double kFarMax = 0.5;

Distance compare(const json::object& sequence, const std::vector<float>& golden,
                 const char* variant, const Model& model, std::size_t vocab) {
  const auto positions = numbers<std::uint32_t>(sequence.at("positions"));
  const auto indices = numbers<std::uint32_t>(sequence.at("indices"));
  const auto full = numbers<std::uint32_t>(sequence.at("full_positions"));
  const json::object& offsets = sequence.at("variants").at(variant).as_object();
  const float* sampled = golden.data() + offsets.at("sampled").to_number<std::size_t>();
  const float* maxima = golden.data() + offsets.at("max").to_number<std::size_t>();
  const float* whole = golden.data() + offsets.at("full").to_number<std::size_t>();
  Distance distance;
  for (std::size_t p = 0; p < positions.size(); ++p) {
    const std::span<const float> logits = model.logits(p);
    double error = 0;
    double scale = std::abs(static_cast<double>(maxima[p]));
    const auto add = [&](float expected, float got) {
      error = std::max(error, std::abs(static_cast<double>(got) - static_cast<double>(expected)));
      scale = std::max(scale, std::abs(static_cast<double>(expected)));
    };
    for (std::size_t i = 0; i < indices.size(); ++i) {
      add(sampled[p * indices.size() + i], logits[indices[i]]);
    }
    // NaN compares false with everything, so it would pass unseen below.
    for (const float logit : logits) {
      if (!std::isfinite(logit)) error = std::numeric_limits<double>::infinity();
    }
    add(maxima[p], *std::ranges::max_element(logits));
    const auto at = std::ranges::find(full, positions[p]);
    for (std::size_t i = 0; at != full.end() && i < vocab; ++i) {
      add(whole[static_cast<std::size_t>(at - full.begin()) * vocab + i], logits[i]);
    }
    if (error > 1e-3 * scale) {
      ++distance.far;
      distance.worst_far = std::max(distance.worst_far, error / scale);
    } else {
      distance.worst = std::max(distance.worst, error / scale);
    }
  }
  return distance;
}

}  // namespace

TEST_CASE("logits of models/nano equal PyTorch's within 1e-3 relative") {
  const Golden golden = load_golden();
  const auto config = load_config(kModel);
  REQUIRE(config);
  const auto weights = load_weights(kModel, *config);
  REQUIRE(weights);
  ThreadPool pool(2);
  for (const auto& [variant, dtype] :
       {std::pair{"kv_fp32", KvDtype::kF32}, std::pair{"kv_bf16", KvDtype::kBf16}}) {
    for (const json::value& entry : golden.index.at("sequences").as_array()) {
      const json::object& sequence = entry.as_object();
      Batch batch;
      batch.tokens = numbers<TokenId>(sequence.at("ids"));
      batch.logit_rows = numbers<std::uint32_t>(sequence.at("positions"));
      const std::uint32_t rows = batch.rows();
      const std::uint32_t count = (rows + kBlockTokens - 1) / kBlockTokens;
      auto kv =
          KvPool::open({config->layers, config->kv_lora_rank, config->rope_width, dtype}, count);
      REQUIRE(kv);
      std::vector<BlockId> blocks;
      for (std::uint32_t i = 0; i < count; ++i)
        blocks.push_back(*(*kv)->allocate());
      batch.chunks.push_back({0, rows, 0, blocks});
      Model model(*config, *weights, kernels(best_instruction_set()), pool, **kv, rows,
                  static_cast<std::uint32_t>(batch.logit_rows.size()));
      model.forward(batch);
      const Distance d = compare(sequence, golden.floats, variant, model, config->vocab_size);
      CAPTURE(std::string(variant));
      CAPTURE(rows);
      CAPTURE(d.worst);
      CAPTURE(d.worst_far);
      // Rounding latents to bfloat16 turns differences of the last float32 bit into whole bfloat16
      // steps, and those flip near-ties in routing now and then (see the README beside the files).
      const std::size_t allowed = dtype == KvDtype::kF32 ? 0 : batch.logit_rows.size() / 10;
      CHECK(d.far <= allowed);
      CHECK(d.worst_far <= kFarMax);
      MESSAGE(std::string(variant), ", ", rows, " tokens: worst ", d.worst,
              ", beyond 1e-3: ", d.far, " of ", batch.logit_rows.size());
    }
  }
}

TEST_CASE("greedy answers of models/nano equal PyTorch's") {
  load_golden();
  EngineOptions options;
  options.checkpoint_dir = kModel;
  options.kv_dtype = KvDtype::kF32;
  auto engine = Engine::open(options);
  REQUIRE(engine);
  std::ifstream lines(std::string(kGolden) + "/prompts.jsonl");
  std::vector<std::vector<TokenId>> expected;
  std::vector<std::vector<TokenId>> got;
  for (std::string line; std::getline(lines, line);) {
    const json::value item = json::parse(line);
    EngineRequest r;
    r.id = RequestId(expected.size());
    r.prompt = std::make_shared<const std::vector<TokenId>>(numbers<TokenId>(item.at("ids")));
    expected.push_back(numbers<TokenId>(item.at("greedy")));
    r.sampling.temperature = 0;
    r.sampling.max_tokens = static_cast<std::uint32_t>(expected.back().size()) + 1;
    REQUIRE((*engine)->submit(std::move(r)));
  }
  got.resize(expected.size());
  while ((*engine)->has_work()) {
    for (const EngineOutput& o : (*engine)->step().outputs) {
      for (const OutputToken& t : o.tokens)
        got[o.request.value].push_back(t.token);
    }
  }
  std::size_t same = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(!got[i].empty());
    // The reference's answer is given without the end token (and may have been cut).
    if (got[i].size() > expected[i].size()) got[i].pop_back();
    if (got[i] == expected[i]) ++same;
  }
  MESSAGE(same, " of ", expected.size(), " greedy answers are the same");
  CHECK(same * 50 >= expected.size() * 49);
}

}  // namespace penstock::engine
