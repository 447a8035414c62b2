// Linear attention on a GPU: both ops, forward and backward, from four kernels.
//
//     S_t = a S_{t-1} + φ(k_t) v_tᵀ      z_t = a z_{t-1} + φ(k_t)      y_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t + eps)
//
// Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 4 to 20; decay as in Sun et al., "Retentive
// Network", 2023, equation 7, chunkwise. The bidirectional op has one S and z for all frames. With rotary positions the
// numerator's φ(q), φ(k) are turned (Su et al., "RoFormer", 2021, equation 19).
//
// Batch and heads alone are too few blocks for a GPU, so time is cut into segments, all worked on at once:
//     sums      part of S and z of each segment
//     scan      adds (and decays) the parts in order: the state before each segment, and the last one
//     mix       y of each tile of frames: from the state before the segment, and pairwise from the tiles since then
//     gradient  dq, dk likewise
// Backwards in time the same kernels run with queries and keys in each other's place. With n_t = dy_t / den_t and
// c_t = -(dy_t·y_t) / den_t:
//     dφ(q_t) = S_t n_t + c_t z_t        dφ(k_s) = R_s v_s + r_s        dv_s = R_sᵀ φ(k_s)
//     R_s = Σ_{t≥s} a^(t-s) φ(q_t) n_tᵀ        r_s = Σ_{t≥s} a^(t-s) c_t φ(q_t)
// Nothing is added up by atomics: every sum has one order, whatever the batch and the machine.
#pragma once

#include "tile.cuh"

namespace asr::cuda {

// a^n with 0^0 = 1.
__device__ inline float power(float a, int64_t n) { return a == 1 ? 1 : powf(a, static_cast<float>(n)); }

// Where a block works: one head, the frames start … stop of a segment, and what decays over them. Backwards, the state
// "before" a segment is that of the later frames, as the last frame of the segment sees it.
struct Segment {
  int64_t b, h, head, unit, start, stop;  // unit: of its state
  const float* powers;                    // a^0 … a^segment in shared memory; null: all 1
  bool backwards;

  __device__ Segment(const Problem& p, int64_t head, int64_t s, bool backwards, float* powers)
      : b(head / p.heads), h(head % p.heads), head(head), unit(p.causal ? head * p.segments() + s : head),
        start(s * p.segment), stop(min(start + p.segment, p.length(b))), powers(p.decay ? powers : nullptr),
        backwards(backwards) {
    if (!p.decay) return;
    const float a = p.decay[h];
    for (int i = threadIdx.x; i <= p.segment; i += blockDim.x) powers[i] = power(a, i);
    __syncthreads();
  }

  __device__ float fade(int64_t frames) const { return powers ? powers[frames] : 1; }
  // From the state before the segment to frame t, and from frame t to the state after it.
  __device__ float since(int64_t t) const { return fade(backwards ? stop - 1 - t : t - start + 1); }
  __device__ float until(int64_t t) const { return fade(backwards ? t - start + 1 : stop - 1 - t); }
  __device__ bool sees(int64_t t, int64_t other) const { return backwards ? other >= t : other <= t; }
  __device__ float between(int64_t t, int64_t other) const { return fade(backwards ? other - t : t - other); }
};

struct Sums {
  Rows x, u;                 // features of x with u · scale
  const float *scale, *pull;  // per frame and head; null: all 1, but pull all 0 backwards
  State parts;
  bool backwards;
};

// One tile of S, and of z, of one segment. blockIdx.x: head and segment, blockIdx.y: tile.
// L = 64: 256 threads, at most 128 registers; shared: operands 18 KB, tile 17 KB, powers 2 KB.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads, 2) sums(Problem p, Sums s) {
  typedef Shape<L> S;
  alignas(32) __shared__ float a[S::operand], b[S::operand], c[L * S::ldl], powers[kMaxSegment + 1];
  const int64_t across = (p.width + L - 1) / L, d0 = blockIdx.y / across * L, m0 = blockIdx.y % across * L;
  const int64_t unit = blockIdx.x;
  const Segment at(p, unit / p.segments(), unit % p.segments(), s.backwards, powers);
  const Features<type> x(p, s.x, at.b, at.h, at.stop);
  const View<type> u(s.u, at.b, at.h, at.stop, p.width);
  const float* scale = s.scale ? s.scale + at.head * p.time : nullptr;
  const float* pull = s.pull ? s.pull + at.head * p.time : nullptr;
  Sum<L, tensor_cores<type>> sum;
  sum.clear();
  float z = 0;
  for (int64_t t0 = at.start; t0 < at.stop; t0 += S::K) {
    fill<L, S::K, L>(a, S::ldl, [&](int i, int j) {
      return t0 + i < at.stop ? x.turned(t0 + i, d0 + j) * at.until(t0 + i) : 0;
    });
    fill<L, S::K, L>(b, S::ldl, [&](int i, int j) {
      const float value = u.value(t0 + i, m0 + j);
      return scale && t0 + i < at.stop ? value * scale[t0 + i] : value;
    });
    __syncthreads();
    sum.template add<true, false>(a, S::ldl, b, S::ldl, p.dim - d0, p.width - m0);
    if (m0 == 0 && threadIdx.x < L)
      for (int64_t t = t0; t < min(t0 + S::K, at.stop); ++t)
        z += x.phi(t, d0 + threadIdx.x) * at.until(t) * (pull ? pull[t] : s.backwards ? 0 : 1);
    __syncthreads();
  }
  sum.store(c);
  __syncthreads();
  float* kv = s.parts.kv + unit * p.dim * p.width;
  for (int e = threadIdx.x; e < L * L; e += S::threads) {
    const int64_t d = d0 + e / L, m = m0 + e % L;
    if (d < p.dim && m < p.width) kv[d * p.width + m] = c[e / L * S::ldl + e % L];
  }
  if (m0 == 0 && threadIdx.x < L && d0 + threadIdx.x < p.dim) s.parts.ksum[unit * p.dim + d0 + threadIdx.x] = z;
}

struct Scan {
  State parts, first, last;  // first, last may be null
  bool backwards;
};

// Parts of segments → states before them, in place; a thread for each element. blockIdx.x: 256 elements, blockIdx.y and
// z: head. Few registers, no shared memory.
template <int threads>
__global__ void __launch_bounds__(threads) scan(Problem p, Scan s) {
  const int64_t head = blockIdx.z * int64_t{65535} + blockIdx.y, kv = p.dim * p.width;
  const int64_t element = blockIdx.x * int64_t{threads} + threadIdx.x;
  if (head >= p.rows() || element >= kv + p.dim) return;
  const bool in_sum = element >= kv;
  const int64_t size = in_sum ? p.dim : kv, e = in_sum ? element - kv : element, segments = p.segments();
  float* part = (in_sum ? s.parts.ksum : s.parts.kv) + head * segments * size + e;
  const float* first = in_sum ? s.first.ksum : s.first.kv;
  float* last = in_sum ? s.last.ksum : s.last.kv;
  const float a = p.decay ? p.decay[head % p.heads] : 1;
  const int64_t length = p.length(head / p.heads);
  float running = first ? first[head * size + e] : 0;
  for (int64_t i = 0; i < segments; ++i) {
    const int64_t n = s.backwards ? segments - 1 - i : i, left = length - n * p.segment;
    const float added = part[n * size];
    part[n * size] = running;
    running = power(a, left < 0 ? 0 : min(left, p.segment)) * running + added;
  }
  if (last) last[head * size + e] = running;
}

struct Mix {
  Rows x, other, values;     // y_t = features of x_t with those of `other`, times values · scale
  const float* scale;
  State state;
  bool backwards, normalise;
  Rows to;                   // without data: only what the backward pass wants of each frame
  Rows dout;
  float *inverse, *pull;
};

// y of a tile of frames, or dv. blockIdx.x: head and tile, blockIdx.y: columns.
// L = 64: 256 threads, at most 128 registers; shared: operands 18 KB, scores 17 KB, powers 2 KB, rows 0.5 KB.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads, 2) mix(Problem p, Mix s) {
  typedef Shape<L> S;
  typedef Sum<L, tensor_cores<type>> Total;
  alignas(32) __shared__ float a[S::operand], b[S::operand], c[L * S::ldl], powers[kMaxSegment + 1], den[L], dot[L];
  const int64_t tiles = p.tiles(L), t0 = blockIdx.x % tiles * L;
  const Segment at(p, blockIdx.x / tiles, t0 / p.segment, s.backwards, powers);
  const Features<type> x(p, s.x, at.b, at.h, at.stop), other(p, s.other, at.b, at.h, at.stop);
  const View<type> values(s.values, at.b, at.h, at.stop, p.width), to(s.to, at.b, at.h, p.time, p.width);
  const View<type> dout(s.dout, at.b, at.h, at.stop, p.width);
  const float* scale = s.scale ? s.scale + at.head * p.time : nullptr;
  const float *kv = s.state.kv + at.unit * p.dim * p.width, *ksum = s.state.ksum + at.unit * p.dim;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < L; i += S::threads) dot[i] = 0;

  for (int64_t m0 = blockIdx.y * int64_t{L}; m0 < p.width; m0 += gridDim.y * int64_t{L}) {
    Total sum;
    sum.clear();
    if (t0 < at.stop) {
      for (int i = warp * S::lines; i < (warp + 1) * S::lines; ++i) {
        float total = 0;
        if (s.normalise && t0 + i < at.stop)
          for (int64_t d = lane; d < p.dim; d += 32) total += x.phi(t0 + i, d) * ksum[d];
        total = warp_sum(total);
        if (lane == 0) den[i] = t0 + i < at.stop ? total * at.since(t0 + i) : 0;
      }
      for (int64_t d0 = 0; d0 < p.dim; d0 += S::K) {
        fill<L, L, S::K>(a, S::ldk, [&](int i, int j) {
          return t0 + i < at.stop ? x.turned(t0 + i, d0 + j) * at.since(t0 + i) : 0;
        });
        fill<L, S::K, L>(b, S::ldl, [&](int i, int j) {
          return d0 + i < p.dim && m0 + j < p.width ? kv[(d0 + i) * p.width + m0 + j] : 0;
        });
        __syncthreads();
        sum.template add<false, false>(a, S::ldk, b, S::ldl, L, p.width - m0);
        __syncthreads();
      }
    }
    const int64_t from = s.backwards ? t0 : at.start, end = s.backwards ? at.stop : min(t0 + L, at.stop);
    for (int64_t o0 = from; p.causal && t0 < at.stop && o0 < end; o0 += L) {
      const auto mask = [&] {
        for (int e = threadIdx.x; e < L * L; e += S::threads) {
          const int64_t t = t0 + e / L, o = o0 + e % L;
          float& value = c[e / L * S::ldl + e % L];
          value = t < at.stop && o < at.stop && at.sees(t, o) ? value * at.between(t, o) : 0;
        }
        __syncthreads();
      };
      const auto add_to_den = [&] {
        for (int i = warp * S::lines; i < (warp + 1) * S::lines; ++i) {
          float total = 0;
          for (int j = lane; j < L; j += 32) total += c[i * S::ldl + j];
          total = warp_sum(total);
          if (lane == 0) den[i] += total;
        }
      };
      if (s.normalise && p.table) {  // the denominator's scores are not turned
        score<L, Total>(c, a, b, p.dim, [&](int i, int64_t d) { return x.phi(t0 + i, d); },
                        [&](int j, int64_t d) { return other.phi(o0 + j, d); });
        mask();
        add_to_den();
      }
      score<L, Total>(c, a, b, p.dim, [&](int i, int64_t d) { return x.turned(t0 + i, d); },
                      [&](int j, int64_t d) { return other.turned(o0 + j, d); });
      mask();
      if (s.normalise && !p.table) add_to_den();
      weigh<L>(sum, c, b, p.width - m0, [&](int j, int m) {
        const float value = values.value(o0 + j, m0 + m);
        return scale && o0 + j < at.stop ? value * scale[o0 + j] : value;
      });
    }
    sum.store(c);
    __syncthreads();
    for (int i = warp * S::lines; i < (warp + 1) * S::lines && t0 + i < p.time; ++i) {
      const int64_t t = t0 + i;
      const float inverse = s.normalise ? 1 / (den[i] + p.eps) : 1;
      float total = 0;
      for (int j = lane; j < L && m0 + j < p.width; j += 32) {
        const float y = t < at.stop ? c[i * S::ldl + j] * inverse : 0;
        if (s.to.data) to.put(t, m0 + j, y);
        else total += y * dout.value(t, m0 + j);
      }
      if (s.to.data) continue;
      total = warp_sum(total);
      if (lane == 0) dot[i] += total;
      if (lane == 0 && m0 + L >= p.width && t < at.stop) {
        s.inverse[at.head * p.time + t] = inverse;
        s.pull[at.head * p.time + t] = -inverse * dot[i];
      }
    }
  }
}

}  // namespace asr::cuda
