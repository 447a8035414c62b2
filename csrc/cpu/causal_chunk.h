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

// p (count x kChunk) = the lower triangle of a bᵀ, row t, column s, times decay^(t-s); `across` is bᵀ (dim x kChunk).
inline void triangle(
    float* p, const float* a, int64_t lda, const float* across, int64_t dim, int64_t count, const Powers& decay) {
  clear(p, count * kChunk);
  for (int64_t t = 0; t < count; t += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - t);
    gemm(p + t * kChunk, kChunk, a + t * lda, lda, 1, across, kChunk, rows, padded(t + rows), dim);
  }
  for (int64_t t = 0; t < count; ++t) {
    if (decay.base != 1)
      for (int64_t s = 0; s <= t; ++s) p[t * kChunk + s] *= decay[t - s];
    std::fill(p + t * kChunk + t + 1, p + (t + 1) * kChunk, 0.0f);
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
      turned_state, z, sums, result;

  explicit Workspace(const Problem& x)
      : phi_q(kChunk * x.d), phi_k(kChunk * x.d), turned_q(kChunk * x.d), turned_k(kChunk * x.d), values(kChunk * x.m),
        gradient_d(kChunk * x.d), gradient_m(kChunk * x.m), scaled(kChunk * std::max(x.d, x.m)),
        scratch(kChunk * std::max(x.d, x.m)), across_d(x.d * kChunk), across_m(x.m * kChunk), p(kChunk * kChunk),
        dp(kChunk * kChunk), now(x.d * x.m), turned_state(x.d * x.m), z(x.d), sums(kChunk * x.d),
        result(kChunk * x.m) {}
};

// z = a z + weight · φ
inline void remember(float* z, const float* phi, int64_t d, const Powers& a, float weight = 1) {
  if (a.base != 1) scale(z, d, a.base);
  add(z, phi, d, weight);
}

// part += Σ_s a^(count-1-s) φ(k_s) v_sᵀ, after decaying what it holds over the chunk.
inline void absorb(
    const Problem& x, float* part, const float* f, const float* values, int64_t ldv, const Powers& a, int64_t count,
    float* scaled) {
  if (a.base != 1) {
    scale(part, x.d * x.m, a[count]);
    f = weighted(scaled, f, x.d, a, count - 1, -1, count, x.d);
  }
  gemm(part, x.m, f, 1, x.d, values, ldv, x.q.dim, x.m, count);
}

}  // namespace asr::causal
