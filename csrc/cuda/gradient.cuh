// Gradients of queries and keys, and of the decay. See linear_attention.cuh.
#pragma once

#include "linear_attention.cuh"

namespace asr::cuda {

struct Gradient {
  Rows x, u, to;              // own features, and the vectors that score: n for queries, v for keys
  const float* scale;         // of u
  Rows other, values;         // the other side's features and vectors
  const float* other_scale;
  const float *pull, *other_pull;  // c_t: of queries as own side, or as the other; both null: no normaliser
  State state;
  bool backwards;             // keys
  double* slopes;             // Σ t φ(x_t)·dφ(x_t) of every tile, or null
};

// A tile of dq or dk. blockIdx.x: head and tile of frames, blockIdx.y: tile of columns, which holds both members of
// each rotary pair.
// L = 64: 256 threads, at most 128 registers; shared: operands 18 KB, scores 17 KB, powers 2 KB, rows 0.5 KB.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads, 2) gradient(Problem p, Gradient s) {
  typedef Shape<L> S;
  typedef Sum<L, tensor_cores<type>> Total;
  alignas(32) __shared__ float operands[2 * S::operand], c[L * S::ldl], powers[kMaxSegment + 1];
  __shared__ double rows[L];
  float *a = operands, *b = operands + S::operand;
  const int64_t tiles = p.tiles(L), t0 = blockIdx.x % tiles * L, half = p.dim / 2;
  const Segment at(p, blockIdx.x / tiles, t0 / p.segment, s.backwards, powers);
  const Features<type> x(p, s.x, at.b, at.h, at.stop), other(p, s.other, at.b, at.h, at.stop);
  const View<type> u(s.u, at.b, at.h, at.stop, p.width), values(s.values, at.b, at.h, at.stop, p.width);
  const View<type> to(s.to, at.b, at.h, p.time, p.dim);
  const int64_t first = at.head * p.time;
  const float *kv = s.state.kv + at.unit * p.dim * p.width, *ksum = s.state.ksum + at.unit * p.dim;
  const auto column = [&](int j) -> int64_t {  // of column j of this tile; dim where there is none
    if (!p.table) return blockIdx.y * int64_t{L} + j;
    const int64_t i = blockIdx.y * int64_t{L / 2} + j % (L / 2);
    return i < half ? (j < L / 2 ? i : half + i) : p.dim;
  };
  const auto own = [&](int i, int64_t m) {
    const float value = u.value(t0 + i, m);
    return s.scale && t0 + i < at.stop ? value * s.scale[first + t0 + i] : value;
  };
  Total sum, plain;  // plain: what rotary positions do not turn
  sum.clear();
  plain.clear();
  for (int64_t m0 = 0; t0 < at.stop && m0 < p.width; m0 += S::K) {
    fill<L, L, S::K>(a, S::ldk, [&](int i, int j) {
      return t0 + i < at.stop ? own(i, m0 + j) * at.since(t0 + i) : 0;
    });
    fill<L, L, S::K>(b, S::ldk, [&](int i, int j) {
      return column(i) < p.dim && m0 + j < p.width ? kv[column(i) * p.width + m0 + j] : 0;
    });
    __syncthreads();
    sum.template add<false, true>(a, S::ldk, b, S::ldk, L, L);
    __syncthreads();
  }
  const int64_t from = s.backwards ? t0 : at.start, end = s.backwards ? at.stop : min(t0 + L, at.stop);
  for (int64_t o0 = from; p.causal && t0 < at.stop && o0 < end; o0 += L) {
    const auto pull = [&](int64_t t, int64_t o) {
      return s.pull ? s.pull[first + t] : s.other_pull ? s.other_pull[first + o] : 0;
    };
    const auto mask = [&](bool scores, bool pulls) {
      for (int e = threadIdx.x; e < L * L; e += S::threads) {
        const int64_t t = t0 + e / L, o = o0 + e % L;
        float& value = c[e / L * S::ldl + e % L];
        const bool seen = t < at.stop && o < at.stop && at.sees(t, o);
        value = seen ? ((scores ? value : 0) + (pulls ? pull(t, o) : 0)) * at.between(t, o) : 0;
      }  // weigh() waits before it reads them
    };
    score<L, Total>(c, a, b, p.width, own, [&](int j, int64_t m) {
      const float value = values.value(o0 + j, m);
      return s.other_scale && o0 + j < at.stop ? value * s.other_scale[first + o0 + j] : value;
    });
    mask(true, !p.table);
    weigh<L>(sum, c, b, L, [&](int j, int d) { return other.turned(o0 + j, column(d)); });
    if (!p.table || (!s.pull && !s.other_pull)) continue;
    mask(false, true);
    weigh<L>(plain, c, b, L, [&](int j, int d) { return other.phi(o0 + j, column(d)); });
  }
  sum.store(c);
  plain.store(operands);
  __syncthreads();
  if (p.table) {  // what came for the turned features goes back by the same angles
    for (int e = threadIdx.x; e < L * L / 2; e += S::threads) {
      const int i = e / (L / 2), j = e % (L / 2);
      if (t0 + i >= at.stop || column(j) >= p.dim) continue;
      float &left = c[i * S::ldl + j], &right = c[i * S::ldl + j + L / 2];
      const float* angle = p.table + (t0 + i) * p.dim + column(j);
      const float l = left, r = right;
      left = l * angle[0] + r * angle[half];
      right = r * angle[0] - l * angle[half];
    }
    __syncthreads();
  }
  for (int line = 0; line < S::lines; ++line) {
    const int i = threadIdx.x / 32 * S::lines + line;
    const int64_t t = t0 + i;
    float total = 0;
    for (int j = threadIdx.x % 32; j < L && t < p.time; j += 32) {
      const int64_t d = column(j);
      if (d >= p.dim) continue;
      float value = 0;
      if (t < at.stop) {
        const float z = s.pull ? s.pull[first + t] : s.backwards ? 1 : 0, phi = x.phi(t, d);
        value = c[i * S::ldl + j] + operands[i * S::ldl + j] + z * at.since(t) * ksum[d];
        total += phi * value;
        value *= slope(p.map, phi);
      }
      to.put(t, d, value);
    }
    total = warp_sum(total);
    if (threadIdx.x % 32 == 0) rows[i] = static_cast<double>(t) * total;
  }
  if (!s.slopes) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < L; ++i) total += rows[i];
  s.slopes[(at.head * tiles + t0 / L) * gridDim.y + blockIdx.y] = total;
}

struct Slope {
  const double* parts;  // queries', then keys'
  int64_t count;        // of one head
  State initial, dinitial, last, dlast;
  float* to;
};

// The slope of ln a: Σ_t t (φ(q_t)·dφ(q_t) - φ(k_t)·dφ(k_t)), with the initial state as a key at -1 and the final one
// as a query at the last frame. A block for each head; shared: 8 bytes for each thread.
template <int threads>
__global__ void __launch_bounds__(threads) decay_slope(Problem p, Slope s) {
  __shared__ double sums[threads];
  const int64_t head = blockIdx.x, size = p.dim * p.width;
  const double frame = static_cast<double>(p.length(head / p.heads)) - 1;
  double total = 0;
  const auto inner = [&](const float* x, const float* y, int64_t n, double weight) {
    for (int64_t i = threadIdx.x; i < n; i += threads) total += weight * x[head * n + i] * y[head * n + i];
  };
  for (int64_t i = threadIdx.x; i < s.count; i += threads)
    total += s.parts[head * s.count + i] - s.parts[(p.rows() + head) * s.count + i];
  inner(s.last.kv, s.dlast.kv, size, frame);
  inner(s.last.ksum, s.dlast.ksum, p.dim, frame);
  if (s.initial.kv) {
    inner(s.initial.kv, s.dinitial.kv, size, 1);
    inner(s.initial.ksum, s.dinitial.ksum, p.dim, 1);
  }
  sums[threadIdx.x] = total;
  for (unsigned step = threads / 2; step; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) s.to[head] = static_cast<float>(sums[0]);
}

// One frame. A block for each head, a thread for each column of S. Shared: 2 x 256 floats a pass over the rows of S.
template <Type type, int threads>
__global__ void __launch_bounds__(threads) step_kernel(Problem p, Step s) {
  constexpr int kLines = 256;
  __shared__ float fq[kLines], fk[kLines], sums[threads];
  const int64_t head = blockIdx.x, b = head / p.heads, h = head % p.heads;
  const Features<type> q(p, s.q, b, h, 1), k(p, s.k, b, h, 1);
  const View<type> v(s.v, b, h, 1, p.width), out(s.out, b, h, 1, p.width);
  const float a = p.decay ? p.decay[h] : 1;
  float *kv = s.state.kv + head * p.dim * p.width, *ksum = s.state.ksum + head * p.dim;
  float part = 0;
  for (int64_t d = threadIdx.x; d < p.dim; d += threads) {
    ksum[d] = a * ksum[d] + k.phi(0, d);
    part += q.phi(0, d) * ksum[d];
  }
  sums[threadIdx.x] = part;
  for (unsigned step = threads / 2; step; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  __syncthreads();
  const float inverse = p.normalise ? 1 / (sums[0] + p.eps) : 1;
  for (int64_t m0 = 0; m0 < p.width; m0 += threads) {
    const int64_t m = m0 + threadIdx.x;
    const float value = v.value(0, m);
    float y = 0;
    for (int64_t d0 = 0; d0 < p.dim; d0 += kLines) {
      __syncthreads();
      for (int i = threadIdx.x; i < kLines; i += threads) fq[i] = q.turned(0, d0 + i), fk[i] = k.turned(0, d0 + i);
      __syncthreads();
      for (int i = 0; m < p.width && i < min(int64_t{kLines}, p.dim - d0); ++i) {
        float& s = kv[(d0 + i) * p.width + m];
        s = a * s + fk[i] * value;
        y += fq[i] * s;
      }
    }
    if (m < p.width) out.put(0, m, y * inverse);
  }
}

}  // namespace asr::cuda
