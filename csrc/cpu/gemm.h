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

// A (m x k) and B (k x n) of a product. Element (i, p) of A lies at a[i * ai + p * ap], so A may be transposed; rows of B
// are contiguous and ldb apart.
struct Factors {
  const float* a;
  int64_t ai, ap;
  const float* b;
  int64_t ldb, k;

  Factors from(int64_t row) const { return {a + row * ai, ai, ap, b, ldb, k}; }
};

// sum += the tile of the product at row i and column j. Inlined, or small products wait for their arguments.
template <int R, int V>
[[gnu::always_inline]] inline void accumulate(vec (&sum)[R][V], Factors x, int64_t i, int64_t j) {
  const float *a = x.a + i * x.ai, *b = x.b + j;
#pragma GCC unroll 4
  for (int64_t p = 0; p < x.k; ++p) {
    vec row[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      row[v] = load(b + p * x.ldb + v * kWidth);
      keep(row[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const vec element = splat(a[r * x.ai + p * x.ap]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] += element * row[v];
    }
  }
}

// The tile of C at row i and column j: the sum of all products' there, in registers until it is whole.
template <bool kAdd, int R, int V, typename... X>
[[gnu::always_inline]] inline void tile(float* c, int64_t ldc, int64_t i, int64_t j, const X&... x) {
  c += i * ldc + j;
  vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) sum[r][v] = kAdd ? load(c + r * ldc + v * kWidth) : vec{};
  (accumulate(sum, x, i, j), ...);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(c + r * ldc + v * kWidth, sum[r][v]);
}

// What `gemm` does between tiles.
struct Nothing {
  void operator()() const {}
};

// How often, at the least, of m rows and n columns.
inline int64_t tiles(int64_t m, int64_t n) {
  return std::max<int64_t>(1, (m + kRows - 1) / kRows * ((n + kVectors * kWidth - 1) / (kVectors * kWidth)));
}

template <bool kAdd, int R, typename F, typename... X>
inline void strip(float* c, int64_t ldc, int64_t i, int64_t n, F& between, const X&... x) {
  int64_t j = 0;
  if constexpr (R <= 2)  // more columns instead, or sums wait for each other
    for (; j + 2 * kVectors * kWidth <= n; j += 2 * kVectors * kWidth, between(), between())
      tile<kAdd, R, 2 * kVectors>(c, ldc, i, j, x...);
  for (; j + kVectors * kWidth <= n; j += kVectors * kWidth, between()) tile<kAdd, R, kVectors>(c, ldc, i, j, x...);
  for (; j < n; j += kWidth, between()) tile<kAdd, R, 1>(c, ldc, i, j, x...);
}

// C (m x n) = the sum of products, or += it. Rows of C are contiguous and ldc apart; n is a multiple of kWidth. Sums run
// over p in order, whatever m and n are. `between` is called between tiles of C, `tiles(m, n)` times or more.
template <bool kAdd, typename F, typename... X>
inline void products(float* c, int64_t ldc, int64_t m, int64_t n, F&& between, const X&... x) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) strip<kAdd, kRows>(c, ldc, i, n, between, x...);
  switch (m - i) {
    case 5: strip<kAdd, 5>(c, ldc, i, n, between, x...); break;
    case 4: strip<kAdd, 4>(c, ldc, i, n, between, x...); break;
    case 3: strip<kAdd, 3>(c, ldc, i, n, between, x...); break;
    case 2: strip<kAdd, 2>(c, ldc, i, n, between, x...); break;
    case 1: strip<kAdd, 1>(c, ldc, i, n, between, x...); break;
  }
}

// C += A B
template <bool kAdd = true, typename F = Nothing>
inline void gemm(
    float* c, int64_t ldc, const float* a, int64_t ai, int64_t ap, const float* b, int64_t ldb, int64_t m, int64_t n,
    int64_t k, F&& between = {}) {
  products<kAdd>(c, ldc, m, n, between, Factors{a, ai, ap, b, ldb, k});
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
