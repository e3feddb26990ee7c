// ToyEngine: a deterministic engine whose next token is a hash of every byte of KV it holds.
//
// A row of KV is a hash of the token, its position and the row before; the next token is a hash of
// all rows, the seed, the choice and the position, and with penalties of the tokens generated. So
// wrong KV, a lost token or a wrong position gives other tokens from there on. It has what the
// embedded engine has round its arithmetic: a paged pool, batches, chunks of prompts, several
// choices, prefill and decode legs over the HandoffPort.
//
// A request is admitted when blocks for all it can ever need are free, first come first served.
// Units: tokens, blocks of kToyBlockTokens. Errors: as engine::Engine. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_engine.h"
#include "tests/sim/toy_memory.h"

namespace penstock::simulated {

struct ToyProfile {
  std::uint32_t blocks = 1024;
  std::uint32_t chunk_tokens = 32;  // of prompts in one step
  Duration step_base = std::chrono::milliseconds(4);
  Duration step_token = std::chrono::microseconds(100);
  std::uint32_t context_length = 2048;
};

// What tokens a toy may say; the same for all of a world.
struct ToyVocabulary {
  std::vector<TokenId> words;
  TokenId end = 0;  // of sequence
  std::uint32_t size = 0;
};

class ToyEngine final : public SimEngine {
 public:
  ToyEngine(std::string model, const ToyVocabulary& vocabulary, const ToyProfile& profile);

  // --- WorkerEngine
  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override;
  void cancel(RequestId request) override;
  bool has_work() const override;
  void step(std::vector<EngineOutput>& outputs) override;
  EngineLoad load() const override;
  void set_waker(std::function<void()> waker) override { waker_ = std::move(waker); }

  // --- SimEngine
  service::RankMemory memory() override { return memory_.rank_memory(description_.name); }
  void connect(HandoffPort& port) override { port_ = &port; }
  void on_handoff_news() override {
    news_ = true;
    if (waker_) waker_();
  }
  void detach() override { port_ = nullptr; }
  Duration step_cost() const override;
  std::uint32_t blocks_used() const override { return memory_.blocks() - memory_.free_blocks(); }
  std::size_t open() const override { return sequences_.size(); }

  const ToyMemory& pool() const { return memory_; }

 private:
  enum class Phase : std::uint8_t { kWaiting, kPulling, kPrefill, kDecode };
  struct Choice {
    std::vector<TokenId> generated;  // with what was emitted elsewhere
    std::vector<std::uint32_t> blocks;
    std::uint32_t computed = 0;  // tokens whose KV is there
    bool finished = false;
  };
  struct Sequence {
    EngineRequest request;
    Phase phase = Phase::kWaiting;
    std::vector<TokenId> tokens;  // prompt and emitted
    std::vector<Choice> choices;  // choices[0] holds the blocks until the prompt is done
    std::uint32_t published = 0;  // blocks
    std::shared_ptr<Pull> pull;
  };

  std::uint32_t blocks_per_choice(const EngineRequest& request) const;
  std::uint32_t blocks_needed(const EngineRequest& request) const;
  void admit();
  void take_arrivals(std::vector<EngineOutput>& outputs);
  void prefill(Sequence& s, std::uint32_t tokens, std::vector<EngineOutput>& outputs);
  void publish(Sequence& s);
  void end_prompt(Sequence& s, std::vector<EngineOutput>& outputs);
  void compute(Choice& choice, TokenId token);
  void draw(Sequence& s, std::uint32_t choice, std::vector<EngineOutput>& outputs);
  void free_choice(Choice& choice);
  // Ends the handoff and the pull, and gives all blocks back.
  void free(Sequence& s, const char* why);
  void sweep();

  ModelDescription description_;
  const ToyVocabulary& vocabulary_;
  const ToyProfile profile_;
  ToyMemory memory_;
  HandoffPort* port_ = nullptr;
  std::function<void()> waker_;
  bool news_ = false;
  std::deque<Sequence> sequences_;  // in order of submission
};

}  // namespace penstock::simulated
