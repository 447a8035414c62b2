// Gradients of LSH attention. See lsh_attention.cuh.
#pragma once

#include "lsh_attention.cuh"

namespace asr::cuda::lsh {

// A tile's frames; nothing of those that are none counts.
template <int L>
struct Frames {
  int frame[L];
  float weight[L], lse[L], inner[L];

  __device__ void read(const Problem& p, const Backward& s, const Sorted& at, int first) {
    for (int i = threadIdx.x; i < L; i += Shape<L>::threads) {
      const int t = frame[i] = at.frame(first + i);
      const int64_t place = at.head * p.time + t;
      weight[i] = t == kNever ? 0 : key_weight(p, s.norm[place]);
      lse[i] = t == kNever ? 0 : s.lse[place];
      inner[i] = t == kNever ? 0 : s.inner[place];
    }
  }
};

// One round of dx and dv: a tile of frames as queries, against the chunks they see, and as keys, against the chunks
// that see them. With P = e^(score - lse), dS = P (dy·v - dy·y) and W = dS times the key's weight:
//     dx_q += W x_k        dx_k += e - x_k (x_k·e) / (|x_k| (|x_k| + 1e-6)), e = Wᵀ x_q        dv_k += Pᵀ dy_q
// keys being scaled to unit length. x_k·e is the sum of W times x_q·x_k, so one product with the other tile serves both
// parts of dx. blockIdx.x: head and tile of frames, blockIdx.y: tile of columns of dx and of dv.
// L = 64: 256 threads, at most 128 registers; shared: operands 18 KB, scores 17 KB, chunks 2 KB, rows 2.3 KB.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads, 2) gradient(Problem p, Backward s, int round) {
  typedef Shape<L> S;
  typedef Sum<L, tensor_cores<type>> Total;
  alignas(32) __shared__ float operands[2 * S::operand], c[L * S::ldl];
  __shared__ Frames<L> mine, other;
  __shared__ float along[L];
  __shared__ int ids[kGroup * L];
  float *a = operands, *b = operands + S::operand;
  const Sorted at(p, s.order, s.chunk, round, L);
  const bool first = round == 0, last = round + 1 == p.rounds;
  if (at.start >= at.n && !last) return;  // padding only
  const View<type> x(s.x, at.b, at.h, at.n, p.dim), v(s.v, at.b, at.h, at.n, p.width);
  const View<type> dy(s.dout, at.b, at.h, at.n, p.width);
  const int64_t base = at.head * p.time;
  const int m0 = blockIdx.y * L;
  const Line<L> line;
  mine.read(p, s, at, at.start);
  Total dx_sum, dv_sum;
  dx_sum.clear();
  dv_sum.clear();
  float pull = 0;

  const int stop = at.stop(p, L, 1);
  for (int o0 = at.first(p); o0 < stop; o0 += L) {
    other.read(p, s, at, o0);
    __syncthreads();
    const Seen seen = meet(p, at, line, mine.frame[line.row], other.frame, ids);
    score<L, Total>(c, a, b, p.dim, [&](int i, int d) { return x.value(mine.frame[i], d); },
                    [&](int j, int d) { return x.value(other.frame[j], d); });
    score<L, Total>(operands, a, b, p.width, [&](int i, int m) { return dy.value(mine.frame[i], m); },
                    [&](int j, int m) { return v.value(other.frame[j], m); });
    float w[line.count], e[line.count];
#pragma unroll
    for (int k = 0; k < line.count; ++k) {
      const int j = line.column(k), at_jk = line.row * S::ldl + j;
      const float probability = seen.sees >> k & 1 ? expf(c[at_jk] * other.weight[j] - mine.lse[line.row]) : 0;
      w[k] = probability * (operands[at_jk] - mine.inner[line.row]) * other.weight[j];
    }
    __syncthreads();
    score<L, Total>(operands, a, b, p.width, [&](int i, int m) { return v.value(mine.frame[i], m); },
                    [&](int j, int m) { return dy.value(other.frame[j], m); });
#pragma unroll
    for (int k = 0; k < line.count; ++k) {
      const int j = line.column(k), at_jk = line.row * S::ldl + j;
      e[k] = seen.seen >> k & 1 ? expf(c[at_jk] * mine.weight[line.row] - other.lse[j]) : 0;
      const float slope = e[k] * (operands[at_jk] - other.inner[j]) * mine.weight[line.row];
      pull += slope * c[at_jk];
      c[at_jk] = w[k] + slope;
    }
    __syncthreads();
    if (m0 < p.dim)
      weigh<L>(dx_sum, c, b, p.dim - m0, [&](int j, int d) { return x.value(other.frame[j], m0 + d); });
    if (m0 >= p.width) continue;
#pragma unroll
    for (int k = 0; k < line.count; ++k) c[line.row * S::ldl + line.column(k)] = e[k];
    weigh<L>(dv_sum, c, b, p.width - m0, [&](int j, int m) { return dy.value(other.frame[j], m0 + m); });
  }

  dx_sum.store(c);
  dv_sum.store(operands);
  pull = line.sum(pull);
  if (line.first == 0) {
    const int own = at.frame(at.start + line.row);
    const bool here = own != kNever && (last || blockIdx.y == 0);
    if (here && !first) pull += s.along[base + own];
    if (here && !last) s.along[base + own] = pull;
    along[line.row] = pull;
  }
  __syncthreads();
  const View<type> dx(s.dx, at.b, at.h, p.time, p.dim), dv(s.dv, at.b, at.h, p.time, p.width);
#pragma unroll 1
  for (int e = threadIdx.x; e < L * L; e += S::threads) {
    const int i = e / L, at_ij = i * S::ldl + e % L;
    const int t = at.to(at.start + i), m = m0 + e % L;
    if (t >= p.time) continue;
    const bool real = t < at.n;
    if (m < p.dim) {
      float value = c[at_ij];
      if (!first && real) value += s.dx_sum[(base + t) * p.dim + m];
      if (last && real) {
        const float norm = s.norm[base + t], size = norm * (norm + 1e-6f);
        if (size > 0) value -= x.at(t, m) * along[i] / size;
      }
      if (last) dx.put(t, m, real ? value : 0);
      else if (real) s.dx_sum[(base + t) * p.dim + m] = value;
    }
    if (m < p.width) {
      float value = operands[at_ij];
      if (!first && real) value += s.dv_sum[(base + t) * p.width + m];
      if (last && real) value += expf(kSelf - s.lse[base + t]) * dy.at(t, m);  // the weight of its own value
      if (last) dv.put(t, m, real ? value : 0);
      else if (real) s.dv_sum[(base + t) * p.width + m] = value;
    }
  }
}

}  // namespace asr::cuda::lsh
