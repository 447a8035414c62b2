// LSH attention as sequences of kernels. L: side of a tile, smaller in tests.
#pragma once

#include "lsh_gradient.cuh"

namespace asr::cuda::lsh {

template <Type type, int L>
struct Ops {
  static constexpr int threads = Shape<L>::threads;

  static dim3 over_tiles(const Problem& p, int64_t columns) {
    return dim3(static_cast<unsigned>(p.rows() * p.tiles(L)), static_cast<unsigned>((columns + L - 1) / L));
  }

  static void placed(const Problem& p, const int32_t* order, int32_t* chunk, void* stream) {
    constexpr auto* kernel = place<threads>;
    const int64_t elements = p.rows() * p.rounds * p.time;
    ASR_LAUNCH(kernel, dim3(static_cast<unsigned>((elements + threads - 1) / threads)), threads, stream, p, order, chunk);
  }

  static void measured(const Problem& p, const Measure& s, void* stream) {
    constexpr auto* kernel = measure<type, L>;
    ASR_LAUNCH(kernel, over_tiles(p, 1), threads, stream, p, s);
  }

  static void forward(const Problem& p, const Forward& f, void* stream) {
    constexpr int warps = L == 64 ? 4 : 2;
    constexpr auto* hashed = hash<type, L>;
    constexpr auto* sorted = sort<warps>;
    constexpr auto* attended = attend<type, L>;
    const int64_t units = p.time ? p.rows() * p.rounds : 0;
    ASR_LAUNCH(hashed, dim3(static_cast<unsigned>(units * p.tiles(L))), threads, stream, p, f);
    ASR_LAUNCH(sorted, dim3(static_cast<unsigned>(units)), 32 * warps, stream, p, f);
    placed(p, f.order, f.chunk, stream);
    measured(p, {f.x, {}, {}, f.norm, nullptr}, stream);
    for (int round = 0; round < p.rounds; ++round)
      ASR_LAUNCH(attended, over_tiles(p, p.width), threads, stream, p, f, round);
  }

  static void backward(const Problem& p, const Backward& g, void* stream) {
    constexpr auto* graded = gradient<type, L>;
    placed(p, g.order, g.chunk, stream);
    measured(p, {g.x, g.out, g.dout, g.norm, g.inner}, stream);
    const dim3 grid = over_tiles(p, p.dim < p.width ? p.width : p.dim);
    for (int round = 0; round < p.rounds; ++round) ASR_LAUNCH(graded, grid, threads, stream, p, g, round);
  }
};

template <Type type>
void forward(const Problem& p, const Forward& f, void* stream) {
  Ops<type, kTile>::forward(p, f, stream);
}

template <Type type>
void backward(const Problem& p, const Backward& g, void* stream) {
  Ops<type, kTile>::backward(p, g, stream);
}

}  // namespace asr::cuda::lsh
