// exp, log, sine and cosine in double precision whose bits are the same on every machine.
//
// The C library's functions differ in the last place between versions; these use only + - * / and
// integer operations, which are exactly rounded everywhere, and are good to some 1e-15 relative.
//
// Errors: NaN in, NaN out. Concurrency: pure functions.
// Source: argument reduction and Taylor series; docs/design/0003-one-arithmetic.md.
#pragma once

namespace penstock::engine {

// e^x; 0 below -700, e^700 above 700.
double stable_exp(double x);
// Natural logarithm of a positive normal number.
double stable_log(double x);
// For |angle| up to 2^21 (the largest position times the largest frequency).
struct SineCosine {
  double sine;
  double cosine;
};
SineCosine stable_sincos(double angle);

}  // namespace penstock::engine
