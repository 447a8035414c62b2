// Tiles of rows in shared memory, and their products: the plain way, and on tensor cores.
#pragma once

#include "launch.h"
#include "problem.h"

namespace asr::cuda {

template <Type>
struct Element;
template <>
struct Element<Type::kFloat> {
  typedef float type;
};
template <>
struct Element<Type::kBFloat16> {
  typedef __nv_bfloat16 type;
};
template <>
struct Element<Type::kHalf> {
  typedef __half type;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline void from_float(float& to, float x) { to = x; }
__device__ inline void from_float(__nv_bfloat16& to, float x) { to = __float2bfloat16(x); }
__device__ inline void from_float(__half& to, float x) { to = __float2half(x); }

// Tensor cores take the products of 16-bit inputs in TF32: it holds every bfloat16 and float16 exactly, and key sums
// beyond 65504 and 1 / den below 6e-8, which a float16 product would lose. float32 inputs stay exact to the last bits.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <Type>
constexpr bool tensor_cores = false;
#else
template <Type type>
constexpr bool tensor_cores = type != Type::kFloat;
#endif

// Square tiles of L frames or columns; products are taken in steps of K. Leading dimensions are multiples of 4, as
// fragments want it, and odd multiples of 4, so that neighbouring rows lie in different banks.
template <int L>
struct Shape {
  static constexpr int K = L / 2, ldk = K + 4, ldl = L + 4;
  static constexpr int rows = L == 16 ? 2 : 4, columns = 4;  // of C that one thread holds
  static constexpr int across = L / (4 * columns);           // warps side by side
  static constexpr int warps = L / (8 * rows) * across;
  static constexpr int threads = 32 * warps;
  static constexpr int lines = L / warps;  // of a tile that one warp sums over
  static constexpr int operand = L * ldk;  // floats of an operand, whichever way it lies
  static_assert(operand >= K * ldl && 2 * operand >= L * ldl);
};

// C (L x L) += A B, held by the threads of a block. Element (i, p) of A lies at a[i * ld + p], or with `turned_a` at
// a[p * ld + i]; B likewise: b[p * ld + j], or with `turned_b` b[j * ld + p]. Sums run over p in order.
template <int L, bool tensor>
struct Sum {
  typedef Shape<L> S;
  float x[S::rows][S::columns];

  __device__ int row(int r) const { return threadIdx.x / 32 / S::across * 8 * S::rows + threadIdx.x % 32 / 4 + 8 * r; }
  __device__ int column(int c) const {
    return threadIdx.x / 32 % S::across * 4 * S::columns + threadIdx.x % 4 + 4 * c;
  }

  __device__ void clear() {
    for (int r = 0; r < S::rows; ++r)
      for (int c = 0; c < S::columns; ++c) x[r][c] = 0;
  }

  // Of a tile only `m` rows and `n` columns are wanted: a warp that has none of them does nothing.
  template <bool turned_a, bool turned_b>
  __device__ void add(const float* a, int lda, const float* b, int ldb, int64_t m, int64_t n) {
    if (row(0) - threadIdx.x % 32 / 4 >= m || column(0) - threadIdx.x % 4 >= n) return;
#pragma unroll 4
    for (int p = 0; p < S::K; ++p) {
      float line[S::columns];
#pragma unroll
      for (int c = 0; c < S::columns; ++c) line[c] = turned_b ? b[column(c) * ldb + p] : b[p * ldb + column(c)];
#pragma unroll
      for (int r = 0; r < S::rows; ++r) {
        const float value = turned_a ? a[p * lda + row(r)] : a[row(r) * lda + p];
#pragma unroll
        for (int c = 0; c < S::columns; ++c) x[r][c] += value * line[c];
      }
    }
  }

  __device__ void store(float* to) const {
    for (int r = 0; r < S::rows; ++r)
      for (int c = 0; c < S::columns; ++c) to[row(r) * S::ldl + column(c)] = x[r][c];
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
namespace wmma = nvcuda::wmma;

template <int L>
struct Sum<L, true> {
  typedef Shape<L> S;
  static constexpr int side = L / 16, count = side * side / S::warps;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> x[count];

  __device__ int row(int f) const { return (threadIdx.x / 32 + f * S::warps) / side * 16; }
  __device__ int column(int f) const { return (threadIdx.x / 32 + f * S::warps) % side * 16; }

  __device__ void clear() {
    for (int f = 0; f < count; ++f) wmma::fill_fragment(x[f], 0.0f);
  }

  template <bool turned_a, bool turned_b>
  __device__ void add(const float* a, int lda, const float* b, int ldb, int64_t m, int64_t n) {
    using Rows = wmma::row_major;
    using Columns = wmma::col_major;
#pragma unroll
    for (int f = 0; f < count; ++f) {
      if (row(f) >= m || column(f) >= n) continue;
#pragma unroll 1
      for (int p = 0; p < S::K; p += 8) {
        wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, std::conditional_t<turned_a, Columns, Rows>> u;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, std::conditional_t<turned_b, Columns, Rows>> v;
        wmma::load_matrix_sync(u, turned_a ? a + p * lda + row(f) : a + row(f) * lda + p, lda);
        wmma::load_matrix_sync(v, turned_b ? b + column(f) * ldb + p : b + p * ldb + column(f), ldb);
        for (int i = 0; i < u.num_elements; ++i) u.x[i] = wmma::__float_to_tf32(u.x[i]);
        for (int i = 0; i < v.num_elements; ++i) v.x[i] = wmma::__float_to_tf32(v.x[i]);
        wmma::mma_sync(x[f], u, v, x[f]);
      }
    }
  }

  __device__ void store(float* to) const {
    for (int f = 0; f < count; ++f)
      wmma::store_matrix_sync(to + row(f) * S::ldl + column(f), x[f], S::ldl, wmma::mem_row_major);
  }
};
#endif

// to[i * ld + j] = f(i, j) for a tile of `rows` x `columns`, neighbouring threads at neighbouring j.
template <int L, int rows, int columns, typename F>
__device__ inline void fill(float* to, int ld, const F& f) {
#pragma unroll 2  // more would not fit into the registers
  for (int e = threadIdx.x; e < rows * columns; e += Shape<L>::threads)
    to[e / columns * ld + e % columns] = f(e / columns, e % columns);
}

// Scores of a tile of frames against another: c[i][j] = x_i · other_j, `width` columns of both.
template <int L, typename Total, typename F, typename G>
__device__ inline void score(float* c, float* a, float* b, int64_t width, const F& own, const G& other) {
  typedef Shape<L> S;
  Total sum;
  sum.clear();
  for (int d0 = 0; d0 < width; d0 += S::K) {
    fill<L, L, S::K>(a, S::ldk, [&](int i, int j) { return own(i, d0 + j); });
    fill<L, L, S::K>(b, S::ldk, [&](int i, int j) { return other(i, d0 + j); });
    __syncthreads();
    sum.template add<false, true>(a, S::ldk, b, S::ldk, L, L);
    __syncthreads();
  }
  sum.store(c);
  __syncthreads();
}

// sum += c rows, where c (L x L) are scores and rows(j, column) those of the other tile.
template <int L, typename Total, typename F>
__device__ inline void weigh(Total& sum, const float* c, float* b, int64_t columns, const F& rows) {
  typedef Shape<L> S;
  for (int j0 = 0; j0 < L; j0 += S::K) {
    fill<L, S::K, L>(b, S::ldl, [&](int i, int j) { return rows(j0 + i, j); });
    __syncthreads();
    sum.template add<false, false>(c + j0, S::ldl, b, S::ldl, L, columns);
    __syncthreads();
  }
}

// Over the lanes of a warp, always in the same order; every lane gets the sum.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Frames before `stop` of one row and head; 0 outside, whatever stands there.
template <Type type>
struct View {
  typedef typename Element<type>::type T;
  T* data;
  int64_t time, step, stop, dim;

  __device__ View(const Rows& x, int64_t b, int64_t h, int64_t stop, int64_t dim)
      : data(static_cast<T*>(x.data) + b * x.stride[0] + h * x.stride[2]),
        time(x.stride[1]), step(x.stride[3]), stop(stop), dim(dim) {}

  __device__ bool inside(int64_t t, int64_t d) const { return t < stop && d < dim; }
  __device__ float at(int64_t t, int64_t d) const { return to_float(data[t * time + d * step]); }
  __device__ float value(int64_t t, int64_t d) const { return inside(t, d) ? at(t, d) : 0; }
  __device__ void put(int64_t t, int64_t d, float x) const { from_float(data[t * time + d * step], x); }
};

// elu: exp(min(x, 0)) + max(x, 0), which is elu(x) + 1 without the cancellation that makes it 0 below -17.
__device__ inline float apply(FeatureMap map, float x) {
  if (map == FeatureMap::kIdentity) return x;
  const float positive = x < 0 ? 0 : x;  // x < 0 ? …: a NaN stays one
  return map == FeatureMap::kElu ? expf(x > 0 ? 0 : x) + positive : positive;
}

// φ'(x) from φ(x): elu's slope is φ below 1 and 1 above; relu's is 0 at 0.
__device__ inline float slope(FeatureMap map, float phi) {
  if (map == FeatureMap::kIdentity) return 1;
  return map == FeatureMap::kElu ? (phi > 1 ? 1 : phi) : (phi > 0 ? 1.0f : 0.0f);
}

// Features of queries or keys.
template <Type type>
struct Features : View<type> {
  const Problem& p;

  __device__ Features(const Problem& p, const Rows& x, int64_t b, int64_t h, int64_t stop)
      : View<type>(x, b, h, stop, p.dim), p(p) {}

  __device__ float phi(int64_t t, int64_t d) const { return this->inside(t, d) ? apply(p.map, this->at(t, d)) : 0; }

  // What the numerator uses: each pair (d, d + dim/2) turned by the angle of its frame. Su et al., "RoFormer", 2021,
  // equation 34.
  __device__ float turned(int64_t t, int64_t d) const {
    if (!p.table) return phi(t, d);
    if (!this->inside(t, d)) return 0;
    const int64_t half = p.dim / 2, i = d < half ? d : d - half;
    const float* angle = p.table + t * p.dim + i;
    const float a = phi(t, i), b = phi(t, i + half);
    return d < half ? a * angle[0] - b * angle[half] : a * angle[half] + b * angle[0];
  }
};

}  // namespace asr::cuda
