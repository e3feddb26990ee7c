// PrefixSource: what engines hold of a prompt, as far as anybody knows; for the pick.
//
// A prompt has two names. By its text, in units of 64 bytes: for engines that don't tell what they
// hold; our own placements are then what is known, corrected by the cached tokens that answers
// report. By its token ids: for engines that publish KV events.
//
// Invariants: what is not known is no hit. Units and shapes: RankMatch counts tokens of the name
// that it was found by (of text: bytes / 4). Errors: none.
// Concurrency: one object for all shards, any thread. Source: docs/kv-events.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "core/kvcache/engine_index.h"
#include "core/kvcache/routing_chain.h"

namespace penstock::foreign {

// Bytes of text that stand for a token where nobody has counted.
inline constexpr std::uint32_t kBytesPerToken = 4;
// What of a text is named, and so can be found again.
inline constexpr std::size_t kTextMax = std::size_t{512} << 10;

struct PromptName {
  std::vector<kvcache::RoutingKey> text;
  std::vector<kvcache::RoutingKey> ids;  // empty: not known
  std::uint32_t text_tokens = 0;         // bytes / 4, of all of it
  std::uint32_t id_count = 0;            // exact; 0: not known

  // As good as we know.
  std::uint32_t tokens() const { return id_count > 0 ? id_count : text_tokens; }
};

// The keys of a text whose beginnings mean the same. `context`: what else its KV depends on.
std::vector<kvcache::RoutingKey> text_keys(const kvcache::RoutingChain& chain,
                                           std::uint64_t context, std::string_view text);

class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  virtual const kvcache::RoutingChain& chain() const = 0;

  // So many ranks has the engine, as it reports; their events are followed, if it has any.
  virtual void has_ranks(WorkerId engine, std::uint32_t ranks) = 0;
  virtual void forget(WorkerId engine) = 0;
  // It publishes KV events: prompts are found by their ids.
  virtual bool has_events(WorkerId engine) const = 0;

  // What ranks hold of it; those that hold nothing are left out.
  virtual std::vector<kvcache::RankMatch> match(const PromptName& prompt) const = 0;
  // The part of what is predicted for a rank that comes true.
  virtual double trust(kvcache::RankOfWorker rank) const = 0;

  // The rank has been given the prompt.
  virtual void sent(kvcache::RankOfWorker rank, const PromptName& prompt) = 0;
  // Its answer says how many of the prompt's tokens were cached; `predicted` as of match().
  struct Observed {
    std::uint32_t predicted = 0;
    std::uint64_t cached = 0;
    std::uint64_t prompt = 0;
  };
  virtual void observed(kvcache::RankOfWorker rank, const PromptName& prompt,
                        const Observed& what) = 0;
};

}  // namespace penstock::foreign
