// The prefill -> decode handoff as values: which leg a request is, what a ticket names.
//
// A gateway draws the HandoffId (128 random bits) and gives it to both legs, so that whoever knows
// it may read the KV: it is never logged whole. docs/protocol/handoff.md has the exchange.
//
// Concurrency: values.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

namespace penstock {

struct HandoffId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const HandoffId&) const = default;
};

enum class Leg : std::uint8_t {
  kWhole,    // prefill and decode in one place
  kPrefill,  // computes the prompt and the first token, and keeps the KV for the decode leg
  kDecode,   // pulls the KV of the prompt, then goes on
};

// Of an EngineRequest.
struct HandoffRef {
  Leg leg = Leg::kWhole;
  HandoffId id;
  // Of the prefill worker; decode leg only.
  std::string source;  // its transport's address, as it announced it
  Epoch source_epoch;

  bool operator==(const HandoffRef&) const = default;
};

// A block of KV in its owner's memory, as a ticket names it.
struct TicketBlock {
  std::uint32_t block = 0;               // its number in the owner's pool
  std::uint64_t generation = 0;          // of that block: another number means other contents
  std::vector<std::uint64_t> checksums;  // [layers], each of the slice's first rows in use
  bool operator==(const TicketBlock&) const = default;
};

}  // namespace penstock

template <>
struct std::hash<penstock::HandoffId> {
  std::size_t operator()(const penstock::HandoffId& id) const noexcept {
    return id.low;  // random already
  }
};
