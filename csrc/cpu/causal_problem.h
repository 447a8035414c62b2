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
// the state before it, and adds its own part up in `part`; the state after it is a^frames · before + part. Where segments
// are worked on at once, f runs twice: first for the parts alone (write = false, and no state before).
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
        split(segments > 1 && heads < torch::stable::get_num_threads()) {
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
      for (const Walk& walk : walks) all_segments_at_once(walk);
      return;
    }
    torch::stable::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      const Buffer running(state), part(state);
      for (int64_t head = begin; head < end; ++head)
        for (const Walk& walk : walks) {
          begin_state(walk, head, running);
          for (int64_t i = 0; i < segments; ++i) {
            clear(part, state);
            const Piece at = piece(head, nth(walk, i));
            walk.f(at, running, part, true);
            next(at, running, part);
          }
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

  void next(const Piece& at, float* running, const float* part) const {
    scale(running, state, powers(at.h).at(at.stop - at.start));
    add(running, part, state);
  }

  int64_t nth(const Walk& walk, int64_t i) const { return walk.forwards ? i : segments - 1 - i; }

  void all_segments_at_once(const Walk& walk) const {
    const Buffer parts(heads * segments * state), starts(heads * segments * state);
    const auto each = [&](bool write) {
      torch::stable::parallel_for(0, heads * segments, 1, [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit) {
          clear(parts + unit * state, state);
          walk.f(piece(unit / segments, unit % segments), starts + unit * state, parts + unit * state, write);
        }
      });
    };
    each(false);
    const Buffer running(state);
    for (int64_t head = 0; head < heads; ++head) {
      begin_state(walk, head, running);
      for (int64_t i = 0; i < segments; ++i) {
        const int64_t unit = head * segments + nth(walk, i);
        std::copy_n(static_cast<float*>(running), state, starts + unit * state);
        next(piece(head, nth(walk, i)), running, parts + unit * state);
      }
      std::copy_n(static_cast<float*>(running), state, walk.last + head * state);
    }
    each(true);
  }
};

}  // namespace asr::causal
