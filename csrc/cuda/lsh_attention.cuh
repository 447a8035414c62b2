// LSH attention on a GPU: a frame attends to the frames that share its chunk of the sorted order, or stand in the one
// before, in any round of hashing. Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2.
//
// Combining rounds by log-sum-exp, with a pair that meets in several counted once, is exact softmax over the union of
// pairs. So rounds follow one another, each a launch that takes the running softmax on, and a pair that met in an
// earlier round is skipped:
//     hash, sort   frames in the order of (bucket, time), in every round
//     place        each frame's chunk in each round, which says who met when
//     measure      |x_t| of each frame; backwards also dy_t · y_t
//     attend       one round: tiles of frames in its order, against the chunks they see
//     gradient     one round backwards: tiles of frames, as queries and as keys
// A frame stands in one tile of a round, so its sums are read and written by one block a round, in the order of rounds:
// nothing is added up by atomics, and every run gives the same bits. Scores are x_q · x_k times the key's weight
// dim^-1/2 / (|x_k| + 1e-6); no more of them than a tile is kept.
#pragma once

#include "lsh_hash.cuh"

namespace asr::cuda::lsh {

constexpr float kSelf = -5e4f;  // the score of a frame with itself: counts where it sees nothing else
constexpr int kGroup = 8;       // rounds whose chunks lie in shared memory at once

__device__ inline float key_weight(const Problem& p, float norm) { return p.scale / (norm + 1e-6f); }

// Where a block works: one head in one round, and the frames at start … start + L of its order. blockIdx.x: head and tile.
struct Sorted {
  int head, b, h, n, round, start;
  const int32_t *order, *chunk;

  __device__ Sorted(const Problem& p, const int32_t* order, const int32_t* chunk, int round, int L)
      : head(static_cast<int>(blockIdx.x / p.tiles(L))), b(static_cast<int>(head / p.heads)),
        h(static_cast<int>(head % p.heads)), n(static_cast<int>(p.length(b))), round(round),
        start(static_cast<int>(blockIdx.x % p.tiles(L) * L)), order(order + (head * p.rounds + round) * p.time),
        chunk(chunk + head * p.time * p.rounds) {}

  // The frame at place i; kNever behind the last, and where the order is none.
  __device__ int frame(int i) const {
    const int t = i < n ? order[i] : kNever;
    return t >= 0 && t < n ? t : kNever;
  }
  // The row to write at place i: padding keeps its own place. p.time or more: none.
  __device__ int to(int i) const { return i < n ? frame(i) : i; }

  // The places that a tile works against: from the chunk before its first frame's to `ahead` chunks after its last's.
  __device__ int first(const Problem& p) const {
    const int64_t chunk = start / p.size;
    return static_cast<int>(chunk > 0 ? (chunk - 1) * p.size : 0);
  }
  __device__ int stop(const Problem& p, int L, int ahead) const {
    if (start >= n) return 0;
    const int64_t last = min(start + L, n) - 1;
    return static_cast<int>(min((last / p.size + 1 + ahead) * p.size, int64_t{n}));
  }
};

// Of the columns of this thread's row, by bits: frames that the row's frame sees in this round and saw in no earlier
// one, and frames that so see it.
struct Seen {
  unsigned sees, seen;
};

// `own`: the row's frame; `other`: those of the columns; `ids`: kGroup · L integers of shared memory.
template <int L>
__device__ inline Seen meet(const Problem& p, const Sorted& at, const Line<L>& line, int own, const int* other, int* ids) {
  Seen now{}, before{};
  for (int r0 = 0; r0 <= at.round; r0 += kGroup) {
    const int rounds = min(kGroup, at.round + 1 - r0);
    if (r0 > 0) __syncthreads();
    for (int e = threadIdx.x; e < kGroup * L; e += Shape<L>::threads) {
      const int j = e / kGroup, r = e % kGroup;
      if (r < rounds) ids[r * L + j] = other[j] == kNever ? 0 : at.chunk[other[j] * p.rounds + r0 + r];
    }
    __syncthreads();
    for (int r = 0; r < rounds && own != kNever; ++r) {
      const int mine = at.chunk[own * p.rounds + r0 + r];
      Seen here{};
#pragma unroll
      for (int k = 0; k < line.count; ++k) {
        const int behind = mine - ids[r * L + line.column(k)];
        if (behind == 0 || behind == 1) here.sees |= 1u << k;
        if (behind == 0 || behind == -1) here.seen |= 1u << k;
      }
      if (r0 + r == at.round) now = here;
      else before.sees |= here.sees, before.seen |= here.seen;
    }
  }
  Seen allowed{};
#pragma unroll
  for (int k = 0; k < line.count; ++k) {
    const int t = other[line.column(k)];
    if (t == own || t == kNever || own == kNever) continue;
    if (!p.causal || t < own) allowed.sees |= 1u << k;
    if (!p.causal || t > own) allowed.seen |= 1u << k;
  }
  return {now.sees & ~before.sees & allowed.sees, now.seen & ~before.seen & allowed.seen};
}

struct Measure {
  Rows x, out, dout;
  float *norm, *inner;  // inner: dy_t · y_t; null: not wanted
};

// |x_t| of each frame of a tile, and dy_t · y_t; a warp for each frame. blockIdx.x: head and tile. No shared memory.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads) measure(Problem p, Measure s) {
  const int64_t head = blockIdx.x / p.tiles(L), b = head / p.heads, h = head % p.heads, n = p.length(b);
  const View<type> x(s.x, b, h, n, p.dim), out(s.out, b, h, n, p.width), dout(s.dout, b, h, n, p.width);
  const int lane = threadIdx.x % 32;
  for (int line = 0; line < Shape<L>::lines; ++line) {
    const int64_t t = blockIdx.x % p.tiles(L) * L + threadIdx.x / 32 * Shape<L>::lines + line;
    if (t >= n) return;
    float square = 0, inner = 0;
    for (int64_t d = lane; d < p.dim; d += 32) square += x.at(t, d) * x.at(t, d);
    for (int64_t d = lane; s.inner && d < p.width; d += 32) inner += dout.at(t, d) * out.at(t, d);
    square = warp_sum(square);
    inner = warp_sum(inner);
    if (lane != 0) continue;
    s.norm[head * p.time + t] = sqrtf(square);
    if (s.inner) s.inner[head * p.time + t] = inner;
  }
}

// One round of the running softmax, y = Σ e^(score - peak) v and total = Σ e^(score - peak); the last one ends it.
// blockIdx.x: head and tile of frames, blockIdx.y: tile of columns.
// L = 64: 256 threads, at most 128 registers; shared: operands 18 KB, scores 17 KB, chunks 2 KB, rows 1.5 KB.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads, 2) attend(Problem p, Forward s, int round) {
  typedef Shape<L> S;
  typedef Sum<L, tensor_cores<type>> Total;
  alignas(32) __shared__ float a[S::operand], b[S::operand], c[L * S::ldl];
  __shared__ float weight[L], keep[L], alone[L], inverse[L];
  __shared__ int mine[L], other[L], ids[kGroup * L];
  const Sorted at(p, s.order, s.chunk, round, L);
  const bool first = round == 0, last = round + 1 == p.rounds;
  if (at.start >= at.n && !last) return;  // padding only
  const View<type> x(s.x, at.b, at.h, at.n, p.dim), v(s.v, at.b, at.h, at.n, p.width);
  const int64_t base = at.head * p.time;
  const int m0 = blockIdx.y * L;
  const Line<L> line;
  const float* state = s.state[round % 2] + 2 * base;  // of the rounds before, by frames
  float peak = kSelf, total = 0, y[line.count] = {};
  if (const int t = at.frame(at.start + line.row); !first && t != kNever)
    peak = state[2 * int64_t{t}], total = state[2 * int64_t{t} + 1];
  for (int i = threadIdx.x; i < L; i += S::threads) mine[i] = at.frame(at.start + i);

  const int stop = at.stop(p, L, 0);
  for (int o0 = at.first(p); o0 < stop; o0 += L) {
    for (int j = threadIdx.x; j < L; j += S::threads) {
      const int t = other[j] = at.frame(o0 + j);
      weight[j] = t == kNever ? 0 : key_weight(p, s.norm[base + t]);
    }
    __syncthreads();
    const unsigned sees = meet(p, at, line, mine[line.row], other, ids).sees;
    score<L, Total>(c, a, b, p.dim, [&](int i, int d) { return x.value(mine[i], d); },
                    [&](int j, int d) { return x.value(other[j], d); });
    float top = peak, added = 0;
#pragma unroll
    for (int k = 0; k < line.count; ++k)
      if (sees >> k & 1) top = fmaxf(top, c[line.row * S::ldl + line.column(k)] * weight[line.column(k)]);
    top = line.max(top);
#pragma unroll
    for (int k = 0; k < line.count; ++k) {
      float& score = c[line.row * S::ldl + line.column(k)];
      score = sees >> k & 1 ? expf(score * weight[line.column(k)] - top) : 0;
      added += score;
    }
    const float factor = expf(peak - top);
    total = total * factor + line.sum(added);
    peak = top;
    Total sum;
    sum.clear();
    weigh<L>(sum, c, b, p.width - m0, [&](int j, int m) { return v.value(other[j], m0 + m); });
    sum.store(c);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < line.count; ++k) y[k] = y[k] * factor + c[line.row * S::ldl + line.column(k)];
  }

#pragma unroll
  for (int k = 0; k < line.count; ++k) c[line.row * S::ldl + line.column(k)] = y[k];
  if (line.first == 0) {
    const float itself = expf(kSelf - peak);
    alone[line.row] = itself;
    inverse[line.row] = 1 / (total + itself);
    const int t = at.to(at.start + line.row);
    keep[line.row] = first || t >= at.n ? 0 : expf(state[2 * int64_t{t}] - peak);
    if (blockIdx.y == 0 && t < p.time) {
      float* next = s.state[(round + 1) % 2] + 2 * (base + t);
      if (last) s.lse[base + t] = t < at.n ? peak + logf(total + itself) : 0;
      else if (t < at.n) next[0] = peak, next[1] = total;
    }
  }
  __syncthreads();
  const View<type> out(s.out, at.b, at.h, p.time, p.width);
#pragma unroll 1
  for (int e = threadIdx.x; e < L * L; e += S::threads) {
    const int i = e / L;
    const int t = at.to(at.start + i), m = m0 + e % L;
    if (t >= p.time || m >= p.width) continue;
    float value = c[i * S::ldl + e % L];
    if (!first && t < at.n) value += s.y[(base + t) * p.width + m] * keep[i];
    if (last) out.put(t, m, t < at.n ? (value + alone[i] * v.at(t, m)) * inverse[i] : 0);
    else if (t < at.n) s.y[(base + t) * p.width + m] = value;
  }
}

}  // namespace asr::cuda::lsh
