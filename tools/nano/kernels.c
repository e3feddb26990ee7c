/* Fused element-wise kernels of the training path (see model.py). bf16 values are uint16_t, rounded to
 * nearest even. All matrices are row-major and dense. Built by kernels.py for the machine it runs on. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;
typedef int64_t i64;

static inline float wide(bf16 v) {
  uint32_t u = (uint32_t)v << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static inline bf16 narrow(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* e^x to about 2e-6 relative, without branches, so that loops over it vectorise. */
static inline float fast_exp(float x) {
  x = x < -87.f ? -87.f : x > 87.f ? 87.f : x;
  float t = x * 1.44269504f;
  float n = (float)(int32_t)(t + (t < 0 ? -0.5f : 0.5f));
  float r = (t - n) * 0.69314718f;
  float p = 1.f + r * (1.f + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * 0.0083333f))));
  union { int32_t i; float f; } scale = {((int32_t)n + 127) << 23};
  return p * scale.f;
}

static inline float sigmoid(float x) { return 1.f / (1.f + fast_exp(-x)); }

/* y = x * scale * w with scale = 1/sqrt(mean(x^2) + eps). x [rows, d], y bf16, scale [rows]. */
void rms_forward(const float *x, const float *w, bf16 *y, float *scale, i64 rows, i64 d, float eps) {
#pragma omp parallel for schedule(static)
  for (i64 r = 0; r < rows; r++) {
    const float *xr = x + r * d;
    float sum = 0;
    for (i64 i = 0; i < d; i++) sum += xr[i] * xr[i];
    float s = scale[r] = 1.f / sqrtf(sum / d + eps);
    for (i64 i = 0; i < d; i++) y[r * d + i] = narrow(xr[i] * s * w[i]);
  }
}

/* dx [rows, d] and dw [d] of the above. */
void rms_backward(const bf16 *dy, const float *x, const float *w, const float *scale, float *dx, float *dw,
                  i64 rows, i64 d) {
  memset(dw, 0, d * 4);
#pragma omp parallel
  {
    float *part = calloc(d, 4);
#pragma omp for schedule(static)
    for (i64 r = 0; r < rows; r++) {
      const float *xr = x + r * d;
      const bf16 *gr = dy + r * d;
      float s = scale[r], dot = 0;
      for (i64 i = 0; i < d; i++) {
        float product = wide(gr[i]) * xr[i] * s;
        part[i] += product;
        dot += product * w[i];
      }
      dot /= d;
      for (i64 i = 0; i < d; i++) dx[r * d + i] = (wide(gr[i]) * w[i] - xr[i] * s * dot) * s;
    }
#pragma omp critical
    for (i64 i = 0; i < d; i++) dw[i] += part[i];
    free(part);
  }
}

/* out [rows, w] = silu(gate) * up; both [rows, 2w] = gate, up. */
void silu_forward(const bf16 *both, bf16 *out, i64 rows, i64 w) {
#pragma omp parallel for schedule(static)
  for (i64 r = 0; r < rows; r++) {
    const bf16 *gate = both + r * 2 * w, *up = gate + w;
    for (i64 i = 0; i < w; i++) {
      float g = wide(gate[i]);
      out[r * w + i] = narrow(g * sigmoid(g) * wide(up[i]));
    }
  }
}

void silu_backward(const bf16 *both, const bf16 *dy, bf16 *out, i64 rows, i64 w) {
#pragma omp parallel for schedule(static)
  for (i64 r = 0; r < rows; r++) {
    const bf16 *gate = both + r * 2 * w, *up = gate + w;
    bf16 *dgate = out + r * 2 * w, *dup = dgate + w;
    for (i64 i = 0; i < w; i++) {
      float g = wide(gate[i]), d = wide(dy[r * w + i]), s = sigmoid(g);
      dgate[i] = narrow(d * wide(up[i]) * s * (1.f + g * (1.f - s)));
      dup[i] = narrow(d * g * s);
    }
  }
}

/* Rows of a group for attention. q [T, H, n + p]; compressed [T, c + p], its last p the rope key;
 * kv [T, H, n + v]; cosine, sine [T, p / 2]; index [rows * len] flat tokens.
 * gq (scaled), gk [rows, H, len, n + p]; gv [rows, H, len, v]. Pairs (2i, 2i + 1) rotate. */
void gather_heads(const bf16 *q, const bf16 *compressed, const bf16 *kv, const float *cosine,
                  const float *sine, const i64 *index, bf16 *gq, bf16 *gk, bf16 *gv, i64 rows, i64 len,
                  i64 heads, i64 n, i64 p, i64 v, i64 c, float scale) {
#pragma omp parallel for schedule(static)
  for (i64 at = 0; at < rows * len; at++) {
    i64 t = index[at], row = at / len, column = at % len;
    const float *co = cosine + t * p / 2, *si = sine + t * p / 2;
    const bf16 *kr = compressed + t * (c + p) + c;
    bf16 turned[256];
    for (i64 i = 0; i < p / 2; i++) {
      float e = wide(kr[2 * i]), o = wide(kr[2 * i + 1]);
      turned[2 * i] = narrow(e * co[i] - o * si[i]);
      turned[2 * i + 1] = narrow(e * si[i] + o * co[i]);
    }
    for (i64 h = 0; h < heads; h++) {
      const bf16 *qs = q + (t * heads + h) * (n + p), *ks = kv + (t * heads + h) * (n + v);
      i64 place = (row * heads + h) * len + column;
      bf16 *qd = gq + place * (n + p), *kd = gk + place * (n + p);
      for (i64 i = 0; i < n; i++) qd[i] = narrow(wide(qs[i]) * scale);
      for (i64 i = 0; i < p / 2; i++) {
        float e = wide(qs[n + 2 * i]) * scale, o = wide(qs[n + 2 * i + 1]) * scale;
        qd[n + 2 * i] = narrow(e * co[i] - o * si[i]);
        qd[n + 2 * i + 1] = narrow(e * si[i] + o * co[i]);
      }
      memcpy(kd, ks, n * 2);
      memcpy(kd + n, turned, p * 2);
      memcpy(gv + place * v, ks + n, v * 2);
    }
  }
}

/* Gradients of the above for the real tokens (segment >= 0), each of which occurs once in all groups. */
void scatter_heads(const bf16 *dgq, const bf16 *dgk, const bf16 *dgv, const float *cosine,
                   const float *sine, const i64 *index, const i64 *segments, bf16 *dq, bf16 *dcompressed,
                   bf16 *dkv, i64 rows, i64 len, i64 heads, i64 n, i64 p, i64 v, i64 c, float scale) {
#pragma omp parallel for schedule(static)
  for (i64 at = 0; at < rows * len; at++) {
    if (segments[at] < 0) continue;
    i64 t = index[at], row = at / len, column = at % len;
    const float *co = cosine + t * p / 2, *si = sine + t * p / 2;
    float sum[256] = {0};
    for (i64 h = 0; h < heads; h++) {
      i64 place = (row * heads + h) * len + column;
      const bf16 *qs = dgq + place * (n + p), *ks = dgk + place * (n + p);
      bf16 *qd = dq + (t * heads + h) * (n + p), *kd = dkv + (t * heads + h) * (n + v);
      for (i64 i = 0; i < n; i++) qd[i] = narrow(wide(qs[i]) * scale);
      for (i64 i = 0; i < p / 2; i++) {
        float e = wide(qs[n + 2 * i]) * scale, o = wide(qs[n + 2 * i + 1]) * scale;
        qd[n + 2 * i] = narrow(e * co[i] + o * si[i]);
        qd[n + 2 * i + 1] = narrow(o * co[i] - e * si[i]);
      }
      memcpy(kd, ks, n * 2);
      for (i64 i = 0; i < p; i++) sum[i] += wide(ks[n + i]);
      memcpy(kd + n, dgv + place * v, v * 2);
    }
    bf16 *kr = dcompressed + t * (c + p) + c;
    for (i64 i = 0; i < p / 2; i++) {
      float e = sum[2 * i], o = sum[2 * i + 1];
      kr[2 * i] = narrow(e * co[i] + o * si[i]);
      kr[2 * i + 1] = narrow(o * co[i] - e * si[i]);
    }
  }
}

/* mixed [T, H * v] from o [rows, H, len, v] for real tokens; back = 1 copies the other way. */
void move_outputs(bf16 *mixed, bf16 *o, const i64 *index, const i64 *segments, i64 rows, i64 len, i64 heads,
                  i64 v, i64 back) {
#pragma omp parallel for schedule(static)
  for (i64 at = 0; at < rows * len; at++) {
    i64 t = index[at], row = at / len, column = at % len;
    for (i64 h = 0; h < heads; h++) {
      bf16 *a = mixed + (t * heads + h) * v, *b = o + ((row * heads + h) * len + column) * v;
      if (!back) {
        if (segments[at] >= 0) memcpy(a, b, v * 2);
      } else if (segments[at] >= 0) {
        memcpy(b, a, v * 2);
      } else {
        memset(b, 0, v * 2);
      }
    }
  }
}

/* Softmax in place over scores [rows, H, count, width] of queries first .. first + count - 1; query i of a
 * row sees keys begin[row, i] .. i, the rest becomes 0. begin [rows, len]. */
void softmax_forward(bf16 *scores, const i64 *begin, i64 rows, i64 heads, i64 count, i64 width, i64 first,
                     i64 len) {
#pragma omp parallel for schedule(static, 16)
  for (i64 line = 0; line < rows * heads * count; line++) {
    i64 query = first + line % count, row = line / (heads * count);
    i64 a = begin[row * len + query], b = query + 1;
    bf16 *s = scores + line * width;
    float top = -1e30f, sum = 0;
    for (i64 i = a; i < b; i++) top = fmaxf(top, wide(s[i]));
    for (i64 i = a; i < b; i++) sum += fast_exp(wide(s[i]) - top);
    float scale = 1.f / sum;
    for (i64 i = a; i < b; i++) s[i] = narrow(fast_exp(wide(s[i]) - top) * scale);
    memset(s, 0, a * 2);
    memset(s + b, 0, (width - b) * 2);
  }
}

/* In place: d (gradient of probabilities) becomes the gradient of scores. */
void softmax_backward(bf16 *d, const bf16 *probs, const i64 *begin, i64 rows, i64 heads, i64 count,
                      i64 width, i64 first, i64 len) {
#pragma omp parallel for schedule(static, 16)
  for (i64 line = 0; line < rows * heads * count; line++) {
    i64 query = first + line % count, row = line / (heads * count);
    i64 a = begin[row * len + query], b = query + 1;
    bf16 *g = d + line * width;
    const bf16 *p = probs + line * width;
    float dot = 0;
    for (i64 i = a; i < b; i++) dot += wide(g[i]) * wide(p[i]);
    for (i64 i = a; i < b; i++) g[i] = narrow(wide(p[i]) * (wide(g[i]) - dot));
    memset(g, 0, a * 2);
    memset(g + b, 0, (width - b) * 2);
  }
}

/* out [tokens, d] = sum over k of w[place] * y[place]; w = 0 stands for all ones. place [tokens, k]. */
void combine(const bf16 *y, const float *w, const i64 *place, bf16 *out, i64 tokens, i64 k, i64 d) {
#pragma omp parallel for schedule(static)
  for (i64 t = 0; t < tokens; t++) {
    float sum[4096];
    for (i64 i = 0; i < d; i++) sum[i] = 0;
    for (i64 j = 0; j < k; j++) {
      const bf16 *yr = y + place[t * k + j] * d;
      float f = w ? w[place[t * k + j]] : 1.f;
      for (i64 i = 0; i < d; i++) sum[i] += f * wide(yr[i]);
    }
    for (i64 i = 0; i < d; i++) out[t * d + i] = narrow(sum[i]);
  }
}

/* dy [tokens, d] to the sorted rows: dys = w * dy[token], dw = <dy[token], y>. */
void combine_backward(const bf16 *dy, const bf16 *y, const float *w, const i64 *token, bf16 *dys, float *dw,
                      i64 rows, i64 d) {
#pragma omp parallel for schedule(static)
  for (i64 r = 0; r < rows; r++) {
    const bf16 *g = dy + token[r] * d, *yr = y + r * d;
    float dot = 0, f = w[r];
    for (i64 i = 0; i < d; i++) dot += wide(g[i]) * wide(yr[i]);
    for (i64 i = 0; i < d; i++) dys[r * d + i] = narrow(f * wide(g[i]));
    dw[r] = dot;
  }
}

/* Cross entropy of logits [rows, vocab] bf16: loss [rows]; logits become weight * (softmax - one-hot). */
void cross_entropy(bf16 *logits, const i64 *target, const float *weight, float *loss, i64 rows, i64 vocab) {
#pragma omp parallel for schedule(static)
  for (i64 r = 0; r < rows; r++) {
    bf16 *x = logits + r * vocab;
    float top = -1e30f, sum = 0;
    for (i64 i = 0; i < vocab; i++) top = fmaxf(top, wide(x[i]));
    for (i64 i = 0; i < vocab; i++) sum += fast_exp(wide(x[i]) - top);
    float chosen = wide(x[target[r]]) - top, scale = weight[r] / sum;
    loss[r] = logf(sum) - chosen;
    for (i64 i = 0; i < vocab; i++) x[i] = narrow(scale * fast_exp(wide(x[i]) - top));
    x[target[r]] = narrow(weight[r] * (fast_exp(chosen) / sum - 1.f));
  }
}
