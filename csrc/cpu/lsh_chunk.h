// What LSH attention works on: one head's frames by time, chunks of them in sorted order, and who sees whom there.
// Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "feature_maps.h"
#include "gemm.h"

namespace asr {

constexpr int64_t kFrames = kVectors * kWidth;  // in a tile of frames
constexpr int64_t kQueries = 32;                // in a tile of scores, of two panels of at most kPanel keys
constexpr int64_t kPanel = 64;
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
  int64_t rounds, size, time, heads, d, m, width, panels;  // d, m: padded widths; width, panels: of a chunk of keys
  bool causal, backward, inside;                           // inside: several threads to a head
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
        width(std::min(padded(this->size), kPanel)),
        panels((this->size + width - 1) / width),
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

// A chunk of sorted frames, as keys. Transposed copies are cut into panels of p.width columns.
struct Keys {
  const Problem& p;
  int64_t columns, count = 0;
  Buffer x, across, v, v_across, weight, dx, dv;
  std::vector<int32_t> time, chunk;  // chunk: (earlier rounds, columns)

  explicit Keys(const Problem& p)
      : p(p), columns(p.panels * p.width),
        x(columns * p.d), across(columns * p.d), v(columns * p.m),
        v_across(p.backward * columns * p.m), weight(columns),
        dx(p.backward * columns * p.d), dv(p.backward * columns * p.m),
        time(columns), chunk(p.rounds * columns) {}

  void gather(const Head& head, int64_t round, int64_t c) {
    const int32_t* at = head.order + round * p.time + c * p.size;
    count = std::min(p.size, head.n - c * p.size);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = at[i], soon = at[std::min(i + 4, count - 1)];
      for (int64_t j = 0; j < p.d; j += 16) __builtin_prefetch(head.x + soon * p.d + j);
      for (int64_t j = 0; j < p.m; j += 16) __builtin_prefetch(head.v + soon * p.m + j);
      copy(x + i * p.d, head.x + t * p.d, p.d);
      copy(v + i * p.m, head.v + t * p.m, p.m);
      time[i] = at[i];
      weight[i] = head.weight[t];
      for (int64_t r = 0; r < round; ++r) chunk[r * columns + i] = head.chunk[t * p.rounds + r];
    }
    std::fill(time.begin() + count, time.begin() + padded(count), kNever);
    turn(across, x, p.d);
    if (!p.backward) return;
    turn(v_across, v, p.m);
    clear(dx, count * p.d);
    clear(dv, count * p.m);
  }

  void turn(float* to, const float* from, int64_t ld) const {
    for (int64_t i = 0; i < count; i += p.width)
      transpose(to + i * ld, p.width, from + i * ld, ld, (std::min(p.width, count - i) + 3) / 4 * 4, ld);
  }
};

struct Panel {
  Keys* keys;
  int64_t first, count;
};

// kWidth keys, as a query looks at them.
struct Looked {
  const float* weight;
  const int32_t *time, *chunk;
  int64_t ld;  // between the chunks of two rounds
};

struct Query {
  int32_t time, limit;
  const int32_t* chunk;
  int64_t round;

  Query(const Head& head, int32_t time, int64_t round)
      : time(time), limit(head.p.causal ? time : kNever - 1), chunk(&head.chunk[time * head.p.rounds]), round(round) {}

  // Keys not seen here: itself, padding, the future, and those seen in an earlier round.
  ivec hidden(const Looked& keys) const {
    const ivec at = load(keys.time);
    uvec apart = 2u - uvec{};
    for (int64_t r = 0; r < round; ++r) {
      const uvec distance = reinterpret_cast<uvec>(chunk[r] - load(keys.chunk + r * keys.ld));
      apart = distance < apart ? distance : apart;
    }
    return (at == time) | (at > limit) | (apart < 2u);
  }
};

// Buffers of one thread. Two chunks are kept: a chunk and the one before.
struct Scratch {
  const Problem& p;
  Keys chunk[2];
  std::vector<Panel> panels;
  int64_t ld;
  Buffer scores, slopes, rows, dy, lse, part;

  explicit Scratch(const Problem& p)
      : p(p), chunk{Keys(p), Keys(p)}, ld(2 * p.width),
        scores(kQueries * ld), slopes(p.backward * kQueries * ld), rows(kQueries * std::max(p.d, p.m)),
        dy(p.backward * p.size * p.m), lse(p.backward * p.size), part(std::max(kQueries, p.size)) {}

  Keys& at(int64_t c) { return chunk[c & 1]; }

  void cut(Keys& keys) {
    for (int64_t i = 0; i < keys.count; i += p.width) panels.push_back({&keys, i, std::min(p.width, keys.count - i)});
  }

  // Calls f(panel, column) for panels g and g + 1; column is theirs in a tile of scores.
  template <typename F>
  void each_panel(size_t g, const F& f) const {
    for (size_t i = g; i < std::min(g + 2, panels.size()); ++i) f(panels[i], (i - g) * p.width);
  }

  // Calls f(keys, column) for every vector of a row of a tile.
  template <typename F>
  void each_vector(size_t g, const F& f) const {
    each_panel(g, [&](const Panel& panel, int64_t column) {
      const Keys& keys = *panel.keys;
      const float* weight = keys.weight + panel.first;
      const int32_t *time = &keys.time[panel.first], *chunk = &keys.chunk[panel.first];
      const int64_t count = panel.count, columns = keys.columns;
      for (int64_t i = 0; i < count; i += kWidth) f(Looked{weight + i, time + i, chunk + i, columns}, column + i);
    });
  }

  // Calls f(scratch, first, last) for ranges of one head's chunks.
  template <typename F>
  void each_range(int64_t chunks, const F& f) {
    if (!p.inside) return f(*this, 0, chunks);
    torch::stable::parallel_for(0, chunks, 4, [&](int64_t first, int64_t last) {
      Scratch own(p);
      f(own, first, last);
    });
  }
};

}  // namespace asr
