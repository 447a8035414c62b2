// Small matrix products on buffers that lie in the first-level cache.
#pragma once

#include <algorithm>

#include "vec.h"

namespace asr {

// R rows by V vectors of C stay in registers: 6 x 2 accumulators cover the latency of two FMA units, and with two vectors
// of B and one element of A they are 15 of the 16 registers that many machines have.
constexpr int kRows = 6, kVectors = 2;

// GCC would read B from memory again for every row, and spill accumulators for it.
inline void keep(vec& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
}

template <bool kAdd, int R, int V>
inline void tile(float* c, int64_t ldc, const float* a, int64_t ai, int64_t ap, const float* b, int64_t ldb, int64_t k) {
  vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = kAdd ? load(c + r * ldc + v * kWidth) : vec{};
  for (int64_t p = 0; p < k; ++p) {
    vec row[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      row[v] = load(b + p * ldb + v * kWidth);
      keep(row[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vec x = splat(a[r * ai + p * ap]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(c + r * ldc + v * kWidth, sum[r][v]);
}

// What `gemm` does between tiles.
struct Nothing {
  void operator()() const {}
};

// How often, at the least.
inline int64_t tiles(int64_t m, int64_t n) {
  return std::max<int64_t>(1, (m + kRows - 1) / kRows * ((n + kVectors * kWidth - 1) / (kVectors * kWidth)));
}

template <bool kAdd, int R, typename F>
inline void strip(
    float* c, int64_t ldc, const float* a, int64_t ai, int64_t ap, const float* b, int64_t ldb, int64_t n, int64_t k,
    F& between) {
  int64_t j = 0;
  for (; j + kVectors * kWidth <= n; j += kVectors * kWidth, between())
    tile<kAdd, R, kVectors>(c + j, ldc, a, ai, ap, b + j, ldb, k);
  for (; j < n; j += kWidth, between()) tile<kAdd, R, 1>(c + j, ldc, a, ai, ap, b + j, ldb, k);
}

// C (m x n) += A (m x k) B (k x n). Element (i, p) of A lies at a[i * ai + p * ap], so A may be transposed; rows of B
// and C are contiguous and ldb, ldc apart; n is a multiple of kWidth. Sums run over p in order, whatever m and n are.
// `between` is called after every tile of C.
template <bool kAdd = true, typename F = Nothing>
inline void gemm(
    float* c, int64_t ldc, const float* a, int64_t ai, int64_t ap, const float* b, int64_t ldb, int64_t m, int64_t n,
    int64_t k, F&& between = {}) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) strip<kAdd, kRows>(c + i * ldc, ldc, a + i * ai, ai, ap, b, ldb, n, k, between);
  c += i * ldc, a += i * ai;
  switch (m - i) {
    case 5: strip<kAdd, 5>(c, ldc, a, ai, ap, b, ldb, n, k, between); break;
    case 4: strip<kAdd, 4>(c, ldc, a, ai, ap, b, ldb, n, k, between); break;
    case 3: strip<kAdd, 3>(c, ldc, a, ai, ap, b, ldb, n, k, between); break;
    case 2: strip<kAdd, 2>(c, ldc, a, ai, ap, b, ldb, n, k, between); break;
    case 1: strip<kAdd, 1>(c, ldc, a, ai, ap, b, ldb, n, k, between); break;
  }
}

// C = A B
template <typename F = Nothing>
inline void product(
    float* c, int64_t ldc, const float* a, int64_t ai, int64_t ap, const float* b, int64_t ldb, int64_t m, int64_t n,
    int64_t k, F&& between = {}) {
  gemm<false>(c, ldc, a, ai, ap, b, ldb, m, n, k, between);
}

// y (columns x ldy) = x (rows x ldx) transposed; rows and columns multiples of 4.
inline void transpose(float* y, int64_t ldy, const float* x, int64_t ldx, int64_t rows, int64_t columns) {
  typedef float four __attribute__((vector_size(16)));
  typedef int32_t index __attribute__((vector_size(16)));
  for (int64_t i = 0; i < rows; i += 4)
    for (int64_t j = 0; j < columns; j += 4) {
      const float* from = x + i * ldx + j;
      const four a = *reinterpret_cast<const quad*>(from), b = *reinterpret_cast<const quad*>(from + ldx);
      const four c = *reinterpret_cast<const quad*>(from + 2 * ldx), d = *reinterpret_cast<const quad*>(from + 3 * ldx);
      const four ab = __builtin_shuffle(a, b, index{0, 4, 1, 5}), cd = __builtin_shuffle(c, d, index{0, 4, 1, 5});
      const four ef = __builtin_shuffle(a, b, index{2, 6, 3, 7}), gh = __builtin_shuffle(c, d, index{2, 6, 3, 7});
      float* to = y + j * ldy + i;
      *reinterpret_cast<quad*>(to) = __builtin_shuffle(ab, cd, index{0, 1, 4, 5});
      *reinterpret_cast<quad*>(to + ldy) = __builtin_shuffle(ab, cd, index{2, 3, 6, 7});
      *reinterpret_cast<quad*>(to + 2 * ldy) = __builtin_shuffle(ef, gh, index{0, 1, 4, 5});
      *reinterpret_cast<quad*>(to + 3 * ldy) = __builtin_shuffle(ef, gh, index{2, 3, 6, 7});
    }
}

}  // namespace asr
