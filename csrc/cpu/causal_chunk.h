// Causal linear attention within a chunk of frames: masked products, and what a chunk adds to the state.
#pragma once

#include "causal_problem.h"
#include "gemm.h"

namespace asr::causal {

// to (d x m) = a · before + part
inline void combine(float* to, const float* before, float a, const float* part, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(to + i, a * load(before + i) + load(part + i));
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

// y (count x ld) += p b, skipping the empty triangle.
inline void lower(float* y, int64_t ld, const float* p, const float* b, int64_t ldb, int64_t count, int64_t width) {
  for (int64_t t = 0; t < count; t += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - t);
    gemm(y + t * ld, ld, p + t * kChunk, kChunk, 1, b, ldb, rows, width, t + rows);
  }
}

// y (count x ld) += pᵀ b, likewise.
inline void upper(float* y, int64_t ld, const float* p, const float* b, int64_t ldb, int64_t count, int64_t width) {
  for (int64_t s = 0; s < count; s += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - s);
    gemm(y + s * ld, ld, p + s * kChunk + s, 1, kChunk, b + s * ldb, ldb, rows, width, count - s);
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

struct Workspace {
  Buffer phi_q, phi_k, turned_q, turned_k, values, gradient_d, gradient_m, scaled, scratch, across_d, across_m, p, dp, now,
      turned_state, sums, result;
  float weights[kChunk];

  explicit Workspace(const Problem& x)
      : phi_q(kChunk * x.d), phi_k(kChunk * x.d), turned_q(kChunk * x.d), turned_k(kChunk * x.d), values(kChunk * x.m),
        gradient_d(kChunk * x.d), gradient_m(kChunk * x.m), scaled(kChunk * std::max(x.d, x.m)),
        scratch(kChunk * std::max(x.d, x.m)), across_d(x.d * kChunk), across_m(x.m * kChunk), p(kChunk * kChunk),
        dp(kChunk * kChunk), now(x.d * x.m), turned_state(x.d * x.m), sums(kChunk * x.d),
        result(kChunk * x.m) {}
};

// z = a z + weight · x, over the rows of x from the first to the last (step 1) or from the last to the first (step -1).
// With `sums`, its row t is z as row t of x leaves it, and `far` beside it, times fade at the first row walked.
inline void remember(
    float* z, const float* x, int64_t count, int64_t d, const Powers& a, int64_t step = 1, const float* weight = nullptr,
    float* sums = nullptr, const float* far = nullptr, float fade = 1) {
  const int64_t first = step > 0 ? 0 : count - 1;
  for (int64_t i = 0; i < d; i += kWidth) {
    vec near = load(z + i), before = sums ? fade * load(far + i) : vec{};
    for (int64_t n = 0, t = first; n < count; ++n, t += step) {
      const vec row = load(x + t * d + i);
      near = a.base * near + (weight ? weight[t] * row : row);
      if (sums) store(sums + t * d + i, near + before);
      before *= a.base;
    }
    store(z + i, near);
  }
}

// part += Σ_s a^(count-1-s) φ(k_s) v_sᵀ, after decaying what it holds over the chunk.
template <typename F>
inline void absorb(
    const Problem& x, float* part, const float* f, const float* values, int64_t ldv, const Powers& a, int64_t count,
    float* scaled, const F& between) {
  if (a.base != 1) {
    scale(part, x.d * x.m, a[count]);
    f = weighted(scaled, f, x.d, a, count - 1, -1, count, x.d);
  }
  gemm(part, x.m, f, 1, x.d, values, ldv, x.q.dim, x.m, count, between);
}

}  // namespace asr::causal
