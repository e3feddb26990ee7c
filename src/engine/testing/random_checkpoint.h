// Checkpoints with random weights, for tests and benchmarks: any shape, written as real files.
//
// Invariants: the same shape and seed give the same bytes on every machine.
// Errors: kIo. Concurrency: none shared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::engine {

enum class StoredType : std::uint8_t { kBf16, kF32, kF16 };

struct CheckpointShape {
  std::uint32_t vocab_size = 97;
  std::uint32_t hidden_size = 40;
  std::uint32_t layers = 3;
  std::uint32_t heads = 3;
  std::uint32_t q_lora_rank = 0;
  std::uint32_t kv_lora_rank = 24;
  std::uint32_t nope_width = 12;
  std::uint32_t rope_width = 8;
  std::uint32_t value_width = 10;
  std::uint32_t dense_width = 56;
  std::uint32_t dense_layers = 1;
  std::uint32_t experts = 6;  // 0 = dense everywhere
  std::uint32_t shared_experts = 1;
  std::uint32_t experts_per_token = 2;
  std::uint32_t expert_width = 20;
  std::uint32_t expert_groups = 1;
  std::uint32_t groups_kept = 1;
  double routed_scale = 1.0;
  bool normalize_weights = true;
  bool interleaved = true;
  bool tied_embeddings = false;
  std::uint32_t context_length = 512;
  std::uint32_t window = 0;  // of the layers below
  std::vector<std::uint32_t> window_layers;
  std::vector<std::uint32_t> eos;
  StoredType type = StoredType::kBf16;
};

// The config.json text of the shape.
std::string config_json(const CheckpointShape& shape);
// Writes config.json and model.safetensors into the existing folder.
Status write_checkpoint(const std::string& folder, const CheckpointShape& shape,
                        std::uint64_t seed);

// A fresh folder under the system's temporary directory, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace penstock::engine
