// PendingFrame: the next frame of a stream while a write is under way; later steps merge into it.
//
// Tokens of one (request, choice) are appended to the output that is there already, and the load is
// replaced by the newest, so a gateway that reads slowly costs the memory of its tokens, not of a
// frame per step. The stream cuts the gateway off when bytes() passes its limit.
//
// Invariants: the merged frame means the same as its parts one after the other.
// Units: bytes() is an estimate from above of the encoded size of outputs and answers.
// Concurrency: one thread at a time. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "domain/engine.h"
#include "io/control/engine_codec.h"

namespace penstock::control {

class PendingFrame {
 public:
  void add(const EngineOutput& output, bool has_logprobs);
  void add(wire::ExpertAnswer answer);
  // Marks that a frame is due even without outputs (a heartbeat).
  void touch() { due_ = true; }
  // Where the caller puts step, loads and draining; kept until take().
  wire::WorkerFrame& frame() { return frame_; }

  bool due() const { return due_; }
  std::size_t bytes() const { return bytes_; }

  // Swaps the frame into `out`, whose memory is reused, and starts an empty one.
  void take(wire::WorkerFrame& out);

 private:
  struct Key {
    std::uint64_t request;
    std::uint32_t choice;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<std::uint64_t>{}(key.request * 0x9E3779B97F4A7C15U + key.choice);
    }
  };

  wire::WorkerFrame frame_;
  std::unordered_map<Key, int, KeyHash> places_;  // in frame_.outputs
  std::size_t bytes_ = 0;
  bool due_ = false;
};

}  // namespace penstock::control
