// The load of an expert or a GPU as mean and deviations: what the placement search adds up.
//
// Internal to core/experts. Deviations are scaled so that cost() is mean + z * deviation.
// Concurrency: values.
#pragma once

#include <cmath>
#include <cstddef>

namespace penstock::experts {

struct Risk {
  // One lane per window; the compiler's vector type, so that adding is one or two instructions.
  using Lanes __attribute__((vector_size(32))) = float;

  float mean = 0;
  Lanes lanes{};

  Risk& operator+=(const Risk& o) {
    mean += o.mean;
    lanes += o.lanes;
    return *this;
  }
  Risk& operator-=(const Risk& o) {
    mean -= o.mean;
    lanes -= o.lanes;
    return *this;
  }
  Risk over(float parts) const {
    Risk r = *this;
    r.mean /= parts;
    r.lanes /= parts;
    return r;
  }
  float deviation_squared() const {
    const Lanes s = lanes * lanes;
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
  float cost() const { return mean + std::sqrt(deviation_squared()); }
  // cost() < limit, without the root.
  bool below(float limit) const {
    const float room = limit - mean;
    return room > 0 && deviation_squared() < room * room;
  }
};

}  // namespace penstock::experts
