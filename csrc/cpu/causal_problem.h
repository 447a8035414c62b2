// Causal linear attention: powers of the decay, and the walk over segments of time that hands the state on.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include <torch/csrc/stable/ops.h>

#include "linear_inputs.h"

namespace asr::causal {

constexpr int64_t kChunk = 32;
static_assert(kChunk % kWidth == 0 && kSegment % kChunk == 0 && kChunk <= kMostRows);

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

// A segment of one head: frames start … stop are real, stop … end padding.
struct Piece {
  int64_t b, h, head, segment, start, stop, end;
};

// A walk over the segments of a head in order, forwards or backwards: f(piece, before, part, write) works on a segment, given
// the state before it, and adds its own part up in `part`; the state after it is a^frames · before + part. Where threads
// share a head, f also runs for the parts alone (write = false, and no state before).
struct Walk {
  const float *first_kv, *first_sum;  // of all heads, or null
  float* last;                        // the state at the end, of all heads
  bool forwards;
  std::function<void(const Piece&, const float* before, float* part, bool write)> f;
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

  Piece piece(int64_t head, int64_t segment) const {
    const int64_t b = head / q.heads, start = segment * kSegment, end = std::min(start + kSegment, q.time);
    return {b, head % q.heads, head, segment, start, std::clamp(length(b), start, end), end};
  }

  // Makes the walks over every head. A head's walks follow each other at once, while its rows are still in the cache.
  void run(std::initializer_list<Walk> walks) const {
    if (split) {
      for (const Walk& walk : walks) in_blocks(walk);
      return;
    }
    torch::stable::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      const Buffer running(state);
      for (int64_t head = begin; head < end; ++head)
        for (const Walk& walk : walks) {
          begin_state(walk, head, running);
          go(walk, head, 0, segments, running);
          std::copy_n(static_cast<float*>(running), state, walk.last + head * state);
        }
    });
  }

 private:
  void begin_state(const Walk& walk, int64_t head, float* to) const {
    clear(to, state);
    if (!walk.first_kv) return;
    load_matrix(to, walk.first_kv + head * q.dim * v.dim, q.dim, v.dim, m);
    load_matrix(to + d * m, walk.first_sum + head * q.dim, 1, q.dim, d);
  }

  Piece nth(const Walk& walk, int64_t head, int64_t i) const {
    return piece(head, walk.forwards ? i : segments - 1 - i);
  }

  void next(const Piece& at, float* running, const float* part) const {
    scale(running, state, powers(at.h).at(at.stop - at.start));
    add(running, part, state);
  }

  // Segments first … last of a walk, from the state in `running`.
  void go(const Walk& walk, int64_t head, int64_t first, int64_t last, float* running) const {
    const Buffer part(state);
    for (int64_t i = first; i < last; ++i) {
      clear(part, state);
      const Piece at = nth(walk, head, i);
      walk.f(at, running, part, true);
      next(at, running, part);
    }
  }

  // A block of segments for every thread that a head has to itself. The states at their starts come first.
  void in_blocks(const Walk& walk) const {
    const int64_t threads = (torch::stable::get_num_threads() + heads - 1) / heads;
    const int64_t size = (segments + threads - 1) / threads, blocks = (segments + size - 1) / size;
    const int64_t before = (blocks - 1) * size;  // segments before the last block
    const Buffer parts(heads * before * state), starts(heads * blocks * state);
    torch::stable::parallel_for(0, heads * before, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        clear(parts + unit * state, state);
        walk.f(nth(walk, unit / before, unit % before), nullptr, parts + unit * state, false);
      }
    });
    for (int64_t head = 0; head < heads; ++head) {
      float* start = starts + head * blocks * state;
      begin_state(walk, head, start);
      for (int64_t i = 0; i < before; ++i) {
        if (i % size == 0) std::copy_n(start, state, start + state), start += state;
        next(nth(walk, head, i), start, parts + (head * before + i) * state);
      }
    }
    torch::stable::parallel_for(0, heads * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t head = unit / blocks, first = unit % blocks * size, last = std::min(first + size, segments);
        go(walk, head, first, last, starts + unit * state);
        if (last == segments) std::copy_n(starts + unit * state, state, walk.last + head * state);
      }
    });
  }
};

}  // namespace asr::causal
