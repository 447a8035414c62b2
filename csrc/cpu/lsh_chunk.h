// What LSH attention works on: one head's frames by time, chunks of them in sorted order, and who sees whom there.
// Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "feature_maps.h"
#include "gemm.h"

namespace asr {

constexpr int64_t kFrames = kVectors * kWidth;  // in a tile of frames
constexpr int64_t kQueries = 32;                // in a tile of scores of at most kPanel keys
constexpr int64_t kPanel = 128;
constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

typedef uint32_t uvec __attribute__((vector_size(kWidth * 4)));
typedef int32_t iloose __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

inline ivec load(const int32_t* p) { return *reinterpret_cast<const iloose*>(p); }

inline void copy(float* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(to + i, load(from + i));
}

struct Problem {
  Rows qk, v;
  const int64_t* lengths;
  int64_t rounds, size, time, heads, d, m;  // d, m: padded widths
  int64_t half, width, columns;             // rows for a chunk's keys; columns of a panel; of all panels of two chunks
  bool causal, backward, inside;            // inside: several threads to a head
  float scale;

  Problem(
      const Tensor& qk, const Tensor& v, const Tensor& lengths, int64_t rounds, int64_t size, bool causal,
      bool backward)
      : qk(qk), v(v),
        lengths(lengths.const_data_ptr<int64_t>()),
        rounds(rounds),
        size(std::min(size, std::max<int64_t>(1, this->qk.time))),
        time(this->qk.time),
        heads(this->qk.batch * this->qk.heads),
        d(padded(this->qk.dim)), m(padded(this->v.dim)),
        half((this->size + 3) / 4 * 4),
        width(std::min(padded(2 * half), kPanel)),
        columns((2 * half + width - 1) / width * width),
        causal(causal), backward(backward),
        inside(heads < torch::stable::get_num_threads()),
        scale(1 / std::sqrt(static_cast<float>(this->qk.dim))) {}

  // Calls f(first, last) for the heads of each thread; f is alone where the threads work inside a head.
  template <typename F>
  void each_head(const F& f) const {
    if (inside) f(0, heads);
    else torch::stable::parallel_for(0, heads, 1, f);
  }

  // Calls f(first, last) for ranges of units of one head, at least `grain` to a thread.
  template <typename F>
  void within(int64_t units, int64_t grain, const F& f) const {
    if (inside) torch::stable::parallel_for(0, units, grain, f);
    else f(0, units);
  }
};

// One head's frames, by time.
struct Head {
  const Problem& p;
  Buffer x, v, norm, weight;   // weight: of a key's scores
  std::vector<int32_t> chunk;  // (time, rounds)
  const int32_t* order;        // (rounds, time)
  int64_t b, h, n, chunks;

  explicit Head(const Problem& p)
      : p(p), x((p.time + kFrames) * p.d), v(p.time * p.m), norm(p.time), weight(p.time), chunk(p.time * p.rounds) {}

  int64_t count(int64_t c) const { return std::min(p.size, n - c * p.size); }
  const int32_t* at(int64_t round, int64_t c) const { return order + round * p.time + c * p.size; }

  // Calls f(first, count) for tiles of frames.
  template <typename F>
  void each_tile(const F& f) const {
    p.within((n + kFrames - 1) / kFrames, 4, [&](int64_t first, int64_t last) {
      for (int64_t t = first * kFrames; t < std::min(last * kFrames, n); t += kFrames) f(t, std::min(kFrames, n - t));
    });
  }

  void read(int64_t head) {
    b = head / p.qk.heads, h = head % p.qk.heads;
    n = std::clamp<int64_t>(p.lengths[b], 0, p.time);
    chunks = (n + p.size - 1) / p.size;
    clear(x + n * p.d, kFrames * p.d);
    each_tile([&](int64_t first, int64_t count) {
      load_rows(p.qk, b, h, first, count, x + first * p.d, p.d);
      load_rows(p.v, b, h, first, count, v + first * p.m, p.m);
      for (int64_t t = first; t < first + count; ++t) {
        norm[t] = std::sqrt(dot(x + t * p.d, x + t * p.d, p.d));
        weight[t] = p.scale / (norm[t] + 1e-6f);
      }
    });
  }

  void place(const int32_t* by) {
    order = by;
    p.within(p.rounds, 1, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r)
        for (int64_t c = 0; c < chunks; ++c)
          for (int64_t i = c * p.size; i < std::min((c + 1) * p.size, n); ++i) {
            const int32_t t = order[r * p.time + i];
            STD_TORCH_CHECK(t >= 0 && t < n, "order: not of these frames");
            chunk[t * p.rounds + r] = static_cast<int32_t>(c);
          }
    });
  }
};

// Keys of a window.
struct Panel {
  int64_t first, count;
};

// Buffers of one thread: chunk c and the one before as keys, in the halves c % 2 and 1 - c % 2 of a window, so that each
// is gathered once and both are one operand; and a tile of scores. Transposed copies are cut into panels of p.width
// columns.
struct Window {
  const Problem& p;
  Buffer x, across, v, v_across, weight, rows, dx, dv, dy, lse, part, scores, slopes;  // rows: what queries receive
  std::vector<int32_t> time, chunk;  // time: kNever where there is no frame; chunk: (earlier rounds, columns)

  explicit Window(const Problem& p)
      : p(p),
        x(2 * p.half * p.d), across(p.columns * p.d), v(2 * p.half * p.m),
        v_across(p.backward * p.columns * p.m), weight(p.columns),
        rows(p.backward ? 2 * p.half * p.d : kQueries * p.m),
        dx(p.backward * 2 * p.half * p.d), dv(p.backward * 2 * p.half * p.m),
        dy(p.backward * p.half * p.m), lse(p.backward * p.half), part(std::max(kQueries, p.half)),
        scores(kQueries * p.width), slopes(p.backward * kQueries * p.width),
        time(p.columns, kNever), chunk(p.rounds * p.columns) {}

  // The first row of chunk c.
  int64_t row(int64_t c) const { return c % 2 * p.half; }

  void gather(const Head& head, int64_t round, int64_t c) {
    const int32_t* at = head.at(round, c);
    const int64_t start = row(c), stop = start + p.half, count = head.count(c), end = start + count;
    for (int64_t i = start; i < end; ++i, ++at) {
      const int64_t t = *at;
      copy(x + i * p.d, head.x + t * p.d, p.d);
      copy(v + i * p.m, head.v + t * p.m, p.m);
      time[i] = *at;
      weight[i] = head.weight[t];
      for (int64_t r = 0; r < round; ++r) chunk[r * p.columns + i] = head.chunk[t * p.rounds + r];
    }
    clear(x + end * p.d, (stop - end) * p.d);
    clear(v + end * p.m, (stop - end) * p.m);
    clear(weight + end, stop - end);
    std::fill(time.begin() + end, time.begin() + (c == 0 ? 2 * p.half : stop), kNever);
    turn(across, x, start, p.d);
    if (!p.backward) return;
    turn(v_across, v, start, p.m);
    clear(dx + start * p.d, p.half * p.d);
    clear(dv + start * p.m, p.half * p.m);
  }

  void turn(float* to, const float* from, int64_t start, int64_t ld) const {
    for (int64_t i = start, count; i < start + p.half; i += count) {
      const int64_t column = i % p.width;
      count = std::min(start + p.half - i, p.width - column);
      transpose(to + (i - column) * ld + column, p.width, from + i * ld, ld, count, ld);
    }
  }

  // Calls f(panel) for the keys that chunk c looks at.
  template <typename F>
  void each_panel(int64_t c, const F& f) const {
    const int64_t keys = c > 0 ? 2 * p.half : p.half;
    for (int64_t i = 0; i < keys; i += p.width) f(Panel{i, std::min(p.width, keys - i)});
  }

  // Calls f(window, first, last) for ranges of one head's chunks.
  template <typename F>
  void each_range(int64_t chunks, const F& f) {
    if (!p.inside) return f(*this, 0, chunks);
    torch::stable::parallel_for(0, chunks, 4, [&](int64_t first, int64_t last) {
      Window own(p);
      f(own, first, last);
    });
  }
};

// Frame `time` as it looks at a panel.
struct Query {
  const int32_t *chunk, *times, *chunks;
  int64_t round, columns;
  int32_t time, limit;

  Query(const Head& head, const Window& keys, const Panel& panel, int32_t time, int64_t round)
      : chunk(&head.chunk[time * head.p.rounds]), times(&keys.time[panel.first]), chunks(&keys.chunk[panel.first]),
        round(round), columns(head.p.columns), time(time), limit(head.p.causal ? time : kNever - 1) {}

  // Which of keys i … i + kWidth are not seen: itself, padding, the future, and those seen in an earlier round.
  ivec hidden(int64_t i) const {
    const ivec at = load(times + i);
    uvec apart = 2u - uvec{};
    for (int64_t r = 0; r < round; ++r) {
      const uvec distance = reinterpret_cast<uvec>(chunk[r] - load(chunks + r * columns + i));
      apart = distance < apart ? distance : apart;
    }
    return (at == time) | (at > limit) | (apart < 2u);
  }
};

// Memory is asked for a chunk's rows one frame after another, between the products of the chunk before.
template <size_t N>
struct Soon {
  const int32_t* at;
  int64_t left;
  std::array<Matrix, N> from;

  void operator()() {
    if (left <= 0) return;
    --left;
    for (const Matrix& x : from)
      for (int64_t i = 0; i < x.ld; i += 16) __builtin_prefetch(x.data + *at * x.ld + i);
    ++at;
  }
};

}  // namespace asr
