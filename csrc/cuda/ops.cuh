// The ops as sequences of kernels. L: side of a tile, smaller in tests.
#pragma once

#include "gradient.cuh"

namespace asr::cuda {

template <Type type, int L>
struct Ops {
  static dim3 over_tiles(const Problem& p, int64_t columns) {
    return dim3(static_cast<unsigned>(p.rows() * p.tiles(L)), static_cast<unsigned>(columns));
  }

  static int64_t tiles(int64_t columns) { return (columns + L - 1) / L; }

  // Parts of every segment, then the states before them.
  static void states(const Problem& p, const Sums& sum, const Scan& scan_, void* stream) {
    constexpr int threads = L == 64 ? 256 : Shape<L>::threads;
    const dim3 grid(
        static_cast<unsigned>(p.rows() * p.segments()), static_cast<unsigned>(tiles(p.dim) * tiles(p.width)));
    constexpr auto* by_segment = sums<type, L>;
    constexpr auto* by_element = scan<threads>;
    ASR_LAUNCH(by_segment, grid, Shape<L>::threads, stream, p, sum);
    const int64_t elements = p.dim * p.width + p.dim, rows = p.rows();
    if (rows == 0) return;
    const dim3 lines(
        static_cast<unsigned>((elements + threads - 1) / threads), static_cast<unsigned>(rows < 65535 ? rows : 65535),
        static_cast<unsigned>((rows + 65534) / 65535));
    ASR_LAUNCH(by_element, lines, threads, stream, p, scan_);
  }

  static void mixed(const Problem& p, const Mix& s, void* stream) {
    constexpr auto* kernel = mix<type, L>;
    ASR_LAUNCH(kernel, over_tiles(p, s.to.data ? tiles(p.width) : 1), Shape<L>::threads, stream, p, s);
  }

  static void graded(const Problem& p, const Gradient& s, void* stream) {
    constexpr auto* kernel = gradient<type, L>;
    ASR_LAUNCH(kernel, over_tiles(p, tiles(p.dim)), Shape<L>::threads, stream, p, s);
  }

  // The bidirectional op uses one state for all frames: the last.
  static void forward(const Problem& p, const Forward& f, void* stream) {
    states(p, {f.k, f.v, nullptr, nullptr, f.parts, false}, {f.parts, f.initial, f.last, false}, stream);
    const State& state = p.causal ? f.parts : f.last;
    mixed(p, {f.q, f.k, f.v, nullptr, state, false, p.normalise, f.out, {}, nullptr, nullptr}, stream);
  }

  static void backward(const Problem& p, const Backward& g, void* stream) {
    const float *inverse = p.normalise ? g.inverse : nullptr, *pull = p.normalise ? g.pull : nullptr;
    const int64_t count = tiles(p.time) * tiles(p.dim);
    double *slopes = p.decay ? g.slopes : nullptr, *of_keys = slopes ? slopes + p.rows() * count : nullptr;
    const State& before = p.causal ? g.parts : g.last;
    if (p.causal) states(p, {g.k, g.v, nullptr, nullptr, g.parts, false}, {g.parts, g.initial, {}, false}, stream);
    if (p.normalise)
      mixed(p, {g.q, g.k, g.v, nullptr, before, false, true, {}, g.dout, g.inverse, g.pull}, stream);
    graded(p, {g.q, g.dout, g.dq, inverse, g.k, g.v, nullptr, pull, nullptr, before, false, slopes}, stream);

    const State& after = p.causal ? g.parts : g.dinitial;
    states(p, {g.q, g.dout, inverse, pull, g.parts, true}, {g.parts, g.dlast, g.dinitial, true}, stream);
    graded(p, {g.k, g.v, g.dk, nullptr, g.q, g.dout, inverse, nullptr, pull, after, true, of_keys}, stream);
    mixed(p, {g.k, g.q, g.dout, inverse, after, true, false, g.dv, {}, nullptr, nullptr}, stream);
    if (!p.decay) return;
    constexpr int threads = L == 64 ? 256 : Shape<L>::threads;
    constexpr auto* kernel = decay_slope<threads>;
    const Slope slope{slopes, count, g.initial, g.dinitial, g.last, g.dlast, g.slope};
    ASR_LAUNCH(kernel, dim3(static_cast<unsigned>(p.rows())), threads, stream, p, slope);
  }

  static void step(const Problem& p, const Step& s, void* stream) {
    constexpr int threads = 2 * L;
    constexpr auto* kernel = step_kernel<type, threads>;
    ASR_LAUNCH(kernel, dim3(static_cast<unsigned>(p.rows())), threads, stream, p, s);
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

template <Type type>
void step(const Problem& p, const Step& s, void* stream) {
  Ops<type, kTile>::step(p, s, stream);
}

}  // namespace asr::cuda
