// Which frames may meet in LSH attention: buckets by random rotation, a stable sort by (bucket, time), chunks of it.
// Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2.
#pragma once

#include "lsh_problem.h"
#include "tile.cuh"

namespace asr::cuda::lsh {

// Work on the elements of a tile, L x L: each row belongs to a few neighbouring threads, which take turns along it.
template <int L>
struct Line {
  static constexpr int lanes = Shape<L>::threads / L, count = L / lanes;
  const int row = threadIdx.x / lanes, first = threadIdx.x % lanes;

  __device__ int column(int k) const { return first + k * lanes; }

  // Over the row, always in the same order; each of its threads gets the result.
  __device__ float sum(float x) const {
    for (int step = 1; step < lanes; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  }
  __device__ float max(float x) const {
    for (int step = 1; step < lanes; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
  }
};

// The largest value of a row so far and where, the first of equals.
struct Largest {
  float value = -INFINITY;
  int at = 0;

  __device__ void take(float x, int where) {
    if (x > value || (x == value && where < at)) value = x, at = where;
  }

  template <int lanes>
  __device__ void share() {
    for (int step = 1; step < lanes; step *= 2) {
      const float x = __shfl_xor_sync(0xffffffffu, value, step);
      take(x, __shfl_xor_sync(0xffffffffu, at, step));
    }
  }
};

// The bucket of each frame of a tile in one round: h(x) = argmax([xR; -xR]), the first of equals. In float32 whatever
// the dtype, without tensor cores: a rotation in fewer digits would be another one. blockIdx.x: head, round and tile.
// L = 64: 256 threads, at most 128 registers; shared: operands 18 KB, products 17 KB.
template <Type type, int L>
__global__ void __launch_bounds__(Shape<L>::threads, 2) hash(Problem p, Forward s) {
  typedef Shape<L> S;
  __shared__ float a[S::operand], b[S::operand], c[L * S::ldl];
  const int64_t tiles = p.tiles(L), unit = blockIdx.x / tiles, t0 = blockIdx.x % tiles * L;
  const int64_t head = unit / p.rounds, row = head / p.heads, n = p.length(row);
  const int64_t half = p.buckets(n) / 2, columns = min(half, s.columns);
  const View<type> x(s.x, row, head % p.heads, n, p.dim);
  const float* rotation = s.rotation + unit % p.rounds * s.rotation_stride[0];
  if (t0 >= n) return;
  const Line<L> line;
  Largest high, low;
  for (int64_t c0 = 0; c0 < columns; c0 += L) {
    Sum<L, false> sum;
    sum.clear();
    for (int64_t d0 = 0; d0 < p.dim; d0 += S::K) {
      fill<L, L, S::K>(a, S::ldk, [&](int i, int j) { return x.value(t0 + i, d0 + j); });
      fill<L, S::K, L>(b, S::ldl, [&](int i, int j) {
        const int64_t d = d0 + i, column = c0 + j;
        return d < p.dim && column < columns ? rotation[d * s.rotation_stride[1] + column * s.rotation_stride[2]] : 0;
      });
      __syncthreads();
      sum.template add<false, false>(a, S::ldk, b, S::ldl, L, columns - c0);
      __syncthreads();
    }
    sum.store(c);
    __syncthreads();
    for (int k = 0; k < line.count; ++k) {
      const int column = static_cast<int>(c0) + line.column(k);
      if (column >= columns) break;
      const float y = c[line.row * S::ldl + line.column(k)];
      high.take(y, column);
      low.take(-y, column);
    }
  }
  high.share<line.lanes>();
  low.share<line.lanes>();
  if (line.first == 0 && t0 + line.row < n)
    s.chunk[unit * p.time + t0 + line.row] = high.value >= low.value ? high.at : low.at + static_cast<int>(half);
}

// Frames in the order of (bucket, time), for one head and round; behind them padding in its own order. A counting sort:
// each warp counts, and then places, a stretch of time, 32 frames at once. blockIdx.x: head and round.
// 4 warps; shared: counts 32 KB, sums 0.5 KB.
template <int warps>
__global__ void __launch_bounds__(32 * warps) sort(Problem p, Forward s) {
  constexpr int threads = 32 * warps;
  __shared__ int counts[2 * kMaxColumns * warps], sums[threads];
  const int64_t unit = blockIdx.x, n = p.length(unit / p.rounds / p.heads);
  const int32_t* bucket = s.chunk + unit * p.time;
  int32_t* order = s.order + unit * p.time;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, total = static_cast<int>(p.buckets(n)) * warps;
  const int64_t stretch = (n + threads - 1) / threads * 32, start = warp * stretch, stop = min(start + stretch, n);

  // Calls f(t, its bucket's count, frames of this bucket earlier among the 32, all of them).
  const auto each = [&](const auto& f) {
    for (int64_t t0 = start; t0 < stop; t0 += 32) {
      const bool real = t0 + lane < stop;
      const int mine = real ? bucket[t0 + lane] : -1;
      const unsigned same = __match_any_sync(0xffffffffu, mine);
      f(real, t0 + lane, mine * warps + warp, __popc(same & ((1u << lane) - 1)), __popc(same));
      __syncwarp();
    }
  };

  for (int64_t t = n + threadIdx.x; t < p.time; t += threads) order[t] = static_cast<int32_t>(t);
  for (int i = threadIdx.x; i < total; i += threads) counts[i] = 0;
  __syncthreads();
  each([&](bool real, int64_t, int at, int earlier, int all) {
    if (real && earlier == 0) counts[at] += all;
  });
  __syncthreads();

  // Counts → where the frames counted begin: of all buckets before, then of this bucket's earlier stretches.
  const int share = (total + threads - 1) / threads, first = min(static_cast<int>(threadIdx.x) * share, total);
  const int last = min(first + share, total);
  int own = 0;
  for (int i = first; i < last; ++i) own += counts[i];
  sums[threadIdx.x] = own;
  for (int step = 1; step < threads; step *= 2) {
    __syncthreads();
    const int before = static_cast<int>(threadIdx.x) < step ? 0 : sums[threadIdx.x - step];
    __syncthreads();
    sums[threadIdx.x] += before;
  }
  int next = sums[threadIdx.x] - own;
  for (int i = first; i < last; ++i) {
    const int count = counts[i];
    counts[i] = next;
    next += count;
  }
  __syncthreads();

  each([&](bool real, int64_t t, int at, int earlier, int all) {
    const int begin = real ? counts[at] : 0;
    __syncwarp();
    if (!real) return;
    order[begin + earlier] = static_cast<int32_t>(t);
    if (earlier == 0) counts[at] = begin + all;
  });
}

// Each frame's chunk in each round. An order that is none leaves chunks as they were, and touches nothing else.
// A thread for each place in the order. Few registers, no shared memory.
template <int threads>
__global__ void __launch_bounds__(threads) place(Problem p, const int32_t* order, int32_t* chunk) {
  const int64_t element = blockIdx.x * int64_t{threads} + threadIdx.x, unit = element / p.time;
  const int64_t head = unit / p.rounds, i = element % p.time;
  if (head >= p.rows()) return;
  const int64_t n = p.length(head / p.heads);
  if (i >= n) return;
  const int64_t t = order[element];
  if (t >= 0 && t < n) chunk[(head * p.time + t) * p.rounds + unit % p.rounds] = static_cast<int32_t>(i / p.size);
}

}  // namespace asr::cuda::lsh
