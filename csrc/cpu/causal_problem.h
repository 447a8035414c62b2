// Causal linear attention: powers of the decay, and the walk over segments of time that hands the state on.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "gemm.h"
#include "linear_inputs.h"

namespace asr::causal {

constexpr int64_t kChunk = 32;
constexpr int64_t kStretch = 128;  // frames of one head before those of the next: heads lie side by side in memory
static_assert(kChunk % kWidth == 0 && kStretch % kChunk == 0 && kSegment % kStretch == 0 && kChunk <= kMostRows);

using Optional = std::optional<Tensor>;

// a^0 … a^kChunk, and a to the number of frames of a segment.
struct Powers {
  float of[kChunk + 1];
  float base;

  explicit Powers(float a) : base(a) {
    for (int64_t i = 0; i <= kChunk; ++i) of[i] = a == 1 ? 1 : std::pow(a, static_cast<float>(i));
  }
  float operator[](int64_t i) const { return of[i]; }
  float at(int64_t frames) const { return base == 1 ? 1 : std::pow(base, static_cast<float>(frames)); }
};

// A stretch of one head: frames start … stop are real, stop … end padding. Those of its segment start and stop at `first`
// and `last`. Chunks are walked from the first frame on or, not `forwards`, from the last, and then comes a chunk of the
// same or another head.
struct Piece {
  int64_t b, h, head, segment, start, stop, end, first, last, next_h, next_t;
  bool forwards;

  // The rows of x that are needed after the chunk at frame t.
  Ahead ahead(const Rows& x, int64_t t, int64_t turns) const {
    const int64_t next = forwards ? t + kChunk : t - kChunk;
    const bool here = start <= next && next < stop;
    return Ahead(x, b, here ? h : next_h, here ? next : next_t, kChunk, turns);
  }
};

// Memory of a thread for the chunk at hand.
struct Workspace {
  Buffer phi_q, phi_k, turned_q, turned_k, values, gradient_d, gradient_m, scaled, scratch, across_d, across_m, p, dp, now,
      sums, result;
  float weights[kChunk];

  Workspace(int64_t d, int64_t m)
      : phi_q(kChunk * d), phi_k(kChunk * d), turned_q(kChunk * d), turned_k(kChunk * d), values(kChunk * m),
        gradient_d(kChunk * d), gradient_m(kChunk * m), scaled(kChunk * std::max(d, m)),
        scratch(kChunk * std::max(d, m)), across_d(d * kChunk), across_m(m * kChunk), p(kChunk * kChunk),
        dp(kChunk * kChunk), now(d * m), sums(kChunk * d), result(kChunk * m) {}
};

// A walk over a head in order, forwards or backwards: f(piece, before, part, write, workspace) works on a stretch, given the
// state before its segment, or null where it is zero, and adds the segment's own part up in `part`; the state after the
// segment is a^frames · before + part. Where threads share a head, f also runs for the parts alone (write = false, and no
// state before).
struct Walk {
  const float *first_kv, *first_sum;  // of all heads, or null
  float* last;                        // the state at the end, of all heads
  bool forwards;
  bool turned;  // S is kept as its transpose
  std::function<void(const Piece&, const float* before, float* part, bool write, Workspace&)> f;
};

struct Problem : LinearInputs {
  const float* decay;  // (heads,) or null
  bool normalise;
  int64_t state;  // floats of one head's S and z
  bool split;     // segments of one head at once

  Problem(
      const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, const Optional& table,
      const Optional& decay, const std::string& map, bool normalise, double eps)
      : LinearInputs(q, k, v, lengths, table, map, eps),
        decay(decay ? decay->const_data_ptr<float>() : nullptr),
        normalise(normalise),
        state(d * m + d),
        split(segments > 1 && heads > 0 && heads < torch::stable::get_num_threads()) {
    if (decay) check_state(*decay, {this->q.heads});
  }

  Powers powers(int64_t h) const { return Powers(decay ? decay[h] : 1.0f); }

  // Makes the walks over every head. The walks over the heads of a row follow each other at once, while they may still be
  // in a cache.
  void run(std::initializer_list<Walk> walks) const {
    if (split) {
      for (const Walk& walk : walks) in_blocks(walk);
      return;
    }
    torch::stable::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      Workspace w(d, m);
      for (int64_t next; begin < end; begin = next) {
        next = std::min(end, (begin / q.heads + 1) * q.heads);
        for (const Walk& walk : walks) {
          for (int64_t head = begin; head < next; ++head) begin_state(walk, head, walk.last + head * state);
          go(walk, begin, next, 0, segments, walk.last + begin * state, w);
        }
      }
    });
  }

 private:
  void begin_state(const Walk& walk, int64_t head, float* to) const {
    clear(to, state);
    if (!walk.first_kv) return;
    const Buffer s(d * m);
    clear(s, d * m);  // also beyond q.dim
    load_matrix(s, walk.first_kv + head * q.dim * v.dim, q.dim, v.dim, m);
    if (walk.turned) transpose(to, d, s, m, d, m);
    else std::copy_n(static_cast<float*>(s), d * m, to);
    load_matrix(to + d * m, walk.first_sum + head * q.dim, 1, q.dim, d);
  }

  // Stretches in the order of the walk over the i-th segment of it, for heads begin … end of one row: f(piece, head - begin).
  template <typename F>
  void each_piece(const Walk& walk, int64_t begin, int64_t end, int64_t i, const F& f) const {
    const int64_t segment = walk.forwards ? i : segments - 1 - i, b = begin / q.heads;
    const int64_t first = segment * kSegment, limit = std::min(first + kSegment, q.time);
    const int64_t last = std::clamp(length(b), first, limit), count = (limit - first + kStretch - 1) / kStretch;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t start = first + (walk.forwards ? n : count - 1 - n) * kStretch, stop = std::min(start + kStretch, limit);
      for (int64_t head = begin; head < end; ++head) {
        const bool more = head + 1 < end;
        const int64_t next_t = walk.forwards ? (more ? start : start + kStretch)
                                             : (more ? start + kStretch : start) - kChunk;
        f(Piece{b, head % q.heads, head, segment, start, std::clamp(last, start, stop), stop, first, last,
                (more ? head + 1 : begin) % q.heads, next_t, walk.forwards}, head - begin);
      }
    }
  }

  // From the state before the i-th segment of a walk to the one after it.
  void next(const Walk& walk, int64_t head, int64_t i, float* running, const float* part) const {
    const int64_t first = (walk.forwards ? i : segments - 1 - i) * kSegment;
    const int64_t frames = std::clamp<int64_t>(length(head / q.heads) - first, 0, kSegment);
    scale(running, state, powers(head % q.heads).at(frames));
    add(running, part, state);
  }

  // Segments first … last of a walk over heads begin … end of one row, from the states in `running`.
  void go(
      const Walk& walk, int64_t begin, int64_t end, int64_t first, int64_t last, float* running, Workspace& w) const {
    const int64_t n = end - begin;
    const Buffer parts(n * state);
    std::vector<const float*> before(n);
    for (int64_t i = first; i < last; ++i) {
      clear(parts, n * state);
      for (int64_t h = 0; h < n; ++h) before[h] = all_zero(running + h * state) ? nullptr : running + h * state;
      each_piece(walk, begin, end, i, [&](const Piece& at, int64_t h) { walk.f(at, before[h], parts + h * state, true, w); });
      for (int64_t h = 0; h < n; ++h) next(walk, begin + h, i, running + h * state, parts + h * state);
    }
  }

  bool all_zero(const float* x) const {
    return std::all_of(x, x + state, [](float number) { return number == 0; });
  }

  // A block of segments for every thread that a head has to itself. The states at their starts come first.
  void in_blocks(const Walk& walk) const {
    const int64_t threads = (torch::stable::get_num_threads() + heads - 1) / heads;
    const int64_t size = (segments + threads - 1) / threads, blocks = (segments + size - 1) / size;
    const int64_t before = (blocks - 1) * size;  // segments before the last block
    const Buffer parts(heads * before * state), starts(heads * blocks * state);
    torch::stable::parallel_for(0, heads * before, 1, [&](int64_t begin, int64_t end) {
      Workspace w(d, m);
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t head = unit / before;
        clear(parts + unit * state, state);
        each_piece(walk, head, head + 1, unit % before, [&](const Piece& at, int64_t) {
          walk.f(at, nullptr, parts + unit * state, false, w);
        });
      }
    });
    for (int64_t head = 0; head < heads; ++head) {
      float* start = starts + head * blocks * state;
      begin_state(walk, head, start);
      for (int64_t i = 0; i < before; ++i) {
        if (i % size == 0) std::copy_n(start, state, start + state), start += state;
        next(walk, head, i, start, parts + (head * before + i) * state);
      }
    }
    torch::stable::parallel_for(0, heads * blocks, 1, [&](int64_t begin, int64_t end) {
      Workspace w(d, m);
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t head = unit / blocks, first = unit % blocks * size, last = std::min(first + size, segments);
        go(walk, head, head + 1, first, last, starts + unit * state, w);
        if (last == segments) std::copy_n(starts + unit * state, state, walk.last + head * state);
      }
    });
  }
};

}  // namespace asr::causal
