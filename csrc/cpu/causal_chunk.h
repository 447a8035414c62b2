// Causal linear attention within a chunk of frames: masked products, and what a chunk adds to the state.
#pragma once

#include "causal_problem.h"

namespace asr::causal {

// → a · before + part, in `to` if there is something before.
inline const float* combine(float* to, const float* before, float a, const float* part, int64_t n) {
  if (!before) return part;
  for (int64_t i = 0; i < n; i += kWidth) store(to + i, a * load(before + i) + load(part + i));
  return to;
}

// to = rows of x, row r times a^(first + step·r).
inline const float* weighted(
    float* to, const float* x, int64_t ld, const Powers& a, int64_t first, int64_t step, int64_t count, int64_t width) {
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < width; i += kWidth) store(to + r * width + i, a[first + step * r] * load(x + r * ld + i));
  return to;
}

// p (count x kChunk) = the lower triangle of a bᵀ, row t, column s, times decay^(t-s); `across` is bᵀ (dim x kChunk). Above
// the diagonal there are zeros within the kRows x kRows blocks on it, and beyond them anything: `lower` and `upper` look
// no further.
inline void triangle(
    float* p, const float* a, int64_t lda, const float* across, int64_t dim, int64_t count, const Powers& decay) {
  for (int64_t t = 0; t < count; t += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - t);
    product(p + t * kChunk, kChunk, a + t * lda, lda, 1, across, kChunk, rows, padded(t + rows), dim);
    for (int64_t row = t; row < t + rows; ++row) {
      if (decay.base != 1)
        for (int64_t s = 0; s <= row; ++s) p[row * kChunk + s] *= decay[row - s];
      for (int64_t s = row + 1; s < t + rows; ++s) p[row * kChunk + s] = 0;
    }
  }
}

// y (count x ld) = the product of x + p b, skipping the empty triangle of p.
template <typename F>
inline void lower(
    float* y, int64_t ld, const Factors& x, const float* p, const float* b, int64_t ldb, int64_t count, int64_t width,
    const F& between) {
  for (int64_t t = 0; t < count; t += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - t);
    const Factors near{p + t * kChunk, kChunk, 1, b, ldb, t + rows};
    products<false>(y + t * ld, ld, rows, width, between, x.from(t), near);
  }
}

// y (count x ld) = the product of x, if given, + pᵀ b, likewise; or += that.
template <bool kAdd, typename F, typename... X>
inline void upper(
    float* y, int64_t ld, const float* p, const float* b, int64_t ldb, int64_t count, int64_t width, const F& between,
    X... x) {
  for (int64_t s = 0; s < count; s += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - s);
    const Factors near{p + s * kChunk + s, 1, kChunk, b + s * ldb, ldb, count - s};
    products<kAdd>(y + s * ld, ld, rows, width, between, x.from(s)..., near);
  }
}

// bᵀ of a chunk, (width x kChunk), with zeros for the frames that the last chunk lacks.
inline void turn_over(float* across, float* b, int64_t ldb, int64_t count, int64_t width, float* scratch) {
  if (count < kChunk) {  // b may be the caller's memory
    for (int64_t t = 0; t < count; ++t) std::copy_n(b + t * ldb, width, scratch + t * width);
    clear(scratch + count * width, (kChunk - count) * width);
    b = scratch, ldb = width;
  }
  transpose(across, kChunk, b, ldb, kChunk, width);
}

// z = a z + weight · x, over the rows of x from the first to the last (step 1) or from the last to the first (step -1).
// With `sums`, its row t is z as row t of x leaves it, and `far` beside it, if there is, times fade at the first row walked.
inline void remember(
    float* z, const float* x, int64_t count, int64_t d, const Powers& a, int64_t step = 1, const float* weight = nullptr,
    float* sums = nullptr, const float* far = nullptr, float fade = 1) {
  const int64_t first = step > 0 ? 0 : count - 1;
  for (int64_t i = 0; i < d; i += kWidth) {
    vec near = load(z + i), before = far ? fade * load(far + i) : vec{};
    for (int64_t n = 0, t = first; n < count; ++n, t += step) {
      const vec row = load(x + t * d + i);
      near = a.base * near + (weight ? weight[t] * row : row);
      if (sums) store(sums + t * d + i, near + before);
      before *= a.base;
    }
    store(z + i, near);
  }
}

// Decays the sums in `part` over the chunk; → a^(count-1-s) φ(k_s), to be added to them.
inline const float* decayed(
    const Problem& x, float* part, const float* f, const Powers& a, int64_t count, float* scaled) {
  if (a.base == 1) return f;
  scale(part, x.d * x.m, a[count]);
  return weighted(scaled, f, x.d, a, count - 1, -1, count, x.d);
}

}  // namespace asr::causal
