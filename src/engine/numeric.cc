#include "engine/numeric.h"

#include <bit>
#include <cstdint>

namespace penstock::engine {
namespace {

// Adding and subtracting 1.5 * 2^52 rounds to the nearest integer.
constexpr double kRounder = 6755399441055744.0;
double nearest(double x) {
  return (x + kRounder) - kRounder;
}

}  // namespace

double stable_exp(double x) {
  if (x < -700) return 0;
  if (x > 700) x = 700;
  const double n = nearest(x * 1.4426950408889634);
  // ln(2) in two parts, the first with 21 trailing zero bits: n times it is exact.
  const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double p = 1;
  for (int i = 14; i >= 1; --i)
    p = 1 + p * r / i;
  if (!(n == n)) return n;
  return p * std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023)
                                   << 52);
}

double stable_log(double x) {
  if (!(x == x)) return x;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 1023ULL << 52);
  if (m > 1.4142135623730951) {
    m /= 2;
    ++exponent;
  }
  // log(m) = 2 atanh(s), |s| <= 0.172: 11 odd terms leave 1e-18.
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  double p = 0;
  for (int i = 23; i >= 1; i -= 2)
    p = 1.0 / i + p * square;
  const auto e = static_cast<double>(exponent);
  return e * 0.6931471803691238 + (2 * s * p + e * 1.9082149292705877e-10);
}

SineCosine stable_sincos(double angle) {
  const double quarter = nearest(angle * 0.6366197723675814);
  // pi/2 in three parts of 33, 33 and 53 bits.
  double r = angle - quarter * 1.5707963267341256;
  r -= quarter * 6.077100506303966e-11;
  r -= quarter * 2.0222662487959506e-21;
  const double square = r * r;
  double sine = 1;
  double cosine = 1;
  for (int i = 20; i >= 2; i -= 2) {
    sine = 1 - sine * square / (i * (i + 1));
    cosine = 1 - cosine * square / ((i - 1) * i);
  }
  sine *= r;
  switch (static_cast<std::int64_t>(quarter) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace penstock::engine
