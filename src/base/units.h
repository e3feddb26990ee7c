// Units and identities as types, so that tokens are never added to bytes and ids never mixed up.
//
// Quantity<Tag> is an int64 amount with + - and comparison within one unit; Id<Tag> is an opaque
// uint64 name with equality, order and hashing. Both are trivially copyable and cost nothing.
//
// Units and shapes: Tokens, Blocks, Bytes count things. Duration is nanoseconds.
// Concurrency: values.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>

namespace penstock {

template <typename Tag>
struct Quantity {
  std::int64_t value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity operator+(Quantity o) const { return Quantity(value + o.value); }
  constexpr Quantity operator-(Quantity o) const { return Quantity(value - o.value); }
  constexpr Quantity& operator+=(Quantity o) {
    value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value -= o.value;
    return *this;
  }
};

template <typename Tag>
struct Id {
  std::uint64_t value = 0;

  constexpr Id() = default;
  constexpr explicit Id(std::uint64_t v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
};

using Tokens = Quantity<struct TokensTag>;
using Blocks = Quantity<struct BlocksTag>;
using Bytes = Quantity<struct BytesTag>;

// One request as a gateway numbers it; unique within (gateway epoch).
using RequestId = Id<struct RequestTag>;
// One run of a process: drawn at start, never reused, so a restart is seen as a new peer.
using Epoch = Id<struct EpochTag>;
// One worker as a gateway knows it.
using WorkerId = Id<struct WorkerTag>;

// Time is a monotonic count of nanoseconds; production maps it to CLOCK_MONOTONIC, the simulator to
// its own queue. There is deliberately no now() here: time comes in through port/clock.h.
using Duration = std::chrono::nanoseconds;
struct MonotonicEpoch {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = Duration;
  using time_point = std::chrono::time_point<MonotonicEpoch>;
  static constexpr bool is_steady = true;
};
using Instant = MonotonicEpoch::time_point;

}  // namespace penstock

template <typename Tag>
struct std::hash<penstock::Id<Tag>> {
  std::size_t operator()(penstock::Id<Tag> id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
