// LSH attention: a frame attends to the frames that share its chunk of the sorted order, or stand in the one before, in
// any round of hashing. Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2.
//
// The reference combines rounds by log-sum-exp, with a pair that meets in several counted once: exact softmax over the
// union of pairs. So here one running softmax goes over all rounds, and a pair that met in an earlier one is skipped.
// Scores are x_q · x_k times the key's weight D^-1/2 / (|x_k| + 1e-6), so that one sorted copy of a chunk serves as
// queries and keys. Every chunk is computed alike whoever computes it and rounds are added in order: the same bits with
// one thread and many, alone and in a batch.

#include <cmath>
#include <tuple>

#include <torch/csrc/stable/library.h>

#include "lsh_chunk.h"
#include "lsh_hash.h"
#include "lsh_inputs.h"

namespace asr {
namespace {

constexpr float kSelf = -5e4f;    // the score of a frame with itself: counts where it sees nothing else
constexpr float kTame = 20;       // no score is beyond: e^score needs no maximum taken off
constexpr float kNothing = -80;   // e^x below is 0 (and no product of it denormal)

float largest(vec x) {
  float parts[kWidth];
  std::memcpy(parts, &x, sizeof(x));
  return *std::max_element(parts, parts + kWidth);
}

// The running softmax of one head: y = Σ e^(score - peak) v, total = Σ e^(score - peak).
struct Running {
  Buffer y, peak, total;
  bool tame;

  explicit Running(const Problem& p) : y(p.time * p.m), peak(p.time), total(p.time) {}

  void start(const Head& head) {
    clear(y, head.n * head.p.m);
    clear(total, head.n);
    tame = true;
    for (int64_t t = 0; t < head.n; ++t) tame &= head.norm[t] * head.p.scale <= kTame;  // by Cauchy and Schwarz
    std::fill_n(static_cast<float*>(peak), head.n, tame ? 0 : kSelf);
  }

  // One query's scores, of `count` keys → their exponentials; → what to scale its y by.
  float weigh(float* scores, const float* weight, int64_t count, const Query& q) {
    vec added{};
    float factor = 1;
    if (tame) {
      for (int64_t i = 0; i < count; i += kWidth) {
        const vec e = exp_within(load(scores + i) * load(weight + i));
        const vec seen = q.hidden(i) ? vec{} : e;
        store(scores + i, seen);
        added += seen;
      }
    } else {
      vec top = splat(peak[q.time]);
      for (int64_t i = 0; i < count; i += kWidth) {
        const vec score = load(scores + i) * load(weight + i);
        const vec seen = q.hidden(i) ? splat(-std::numeric_limits<float>::infinity()) : score;
        store(scores + i, seen);
        top = max(seen, top);
      }
      const float above = largest(top);
      factor = std::exp(peak[q.time] - above);
      peak[q.time] = above;
      for (int64_t i = 0; i < count; i += kWidth) {
        const vec x = load(scores + i) - above;
        const vec e = x < kNothing ? vec{} : exp_within(x);
        store(scores + i, e);
        added += e;
      }
    }
    total[q.time] = total[q.time] * factor + sum(added);
    return factor;
  }

  void attend(const Head& head, Window& w, int64_t round, int64_t first_chunk, int64_t last_chunk) {
    const Problem& p = head.p;
    if (first_chunk > 0) w.gather(head, round, first_chunk - 1);
    for (int64_t c = first_chunk; c < last_chunk; ++c) {
      w.gather(head, round, c);
      Soon<3> soon{head.at(round, c + 1), c + 1 < last_chunk ? head.count(c + 1) : 0,
                   {Matrix{head.x, p.d}, Matrix{head.v, p.m}, Matrix{y, p.m}}};
      for (int64_t first = 0; first < head.count(c); first += kQueries) {
        const int64_t row = w.row(c) + first, queries = std::min(kQueries, head.count(c) - first);
        const int32_t* time = &w.time[row];
        w.each_panel(c, [&](const Panel& keys) {
          product(
              w.scores, p.width, w.x + row * p.d, p.d, 1, w.across + keys.first * p.d, p.width, queries,
              padded(keys.count), p.qk.dim, soon);
          for (int64_t i = 0; i < queries; ++i)
            w.part[i] = weigh(
                w.scores + i * p.width, w.weight + keys.first, keys.count, Query(head, w, keys, time[i], round));
          product(
              w.rows, p.m, w.scores, p.width, 1, w.v + keys.first * p.m, p.m, queries, p.m, keys.count, soon);
          for (int64_t i = 0; i < queries; ++i) {
            float* to = y + time[i] * p.m;
            for (int64_t j = 0; j < p.m; j += kWidth)
              store(to + j, load(to + j) * w.part[i] + load(w.rows + i * p.m + j));
          }
        });
      }
    }
  }

  // → lse; y becomes the output. Now the frame itself joins in.
  void finish(const Head& head, int64_t t, float* lse) {
    const int64_t m = head.p.m;
    if (total[t] == 0) peak[t] = kSelf;
    if (kSelf - peak[t] > kNothing) {
      const float e = std::exp(kSelf - peak[t]);
      total[t] += e;
      add(y + t * m, head.v + t * m, m, e);
    }
    scale(y + t * m, m, 1 / total[t]);
    *lse = peak[t] + std::log(total[t]);
  }
};

std::tuple<Tensor, Tensor, Tensor> forward(
    Tensor qk, Tensor v, Tensor lengths, Tensor rotation, int64_t bucket_size, bool causal) {
  check_lsh_forward(qk, v, lengths, rotation, bucket_size);
  const Problem p(qk, v, lengths, rotation.size(0), bucket_size, causal, false);
  const Hash hash(rotation, p.qk.dim, p.time, p.size);
  Tensor out = torch::stable::new_empty(v, {p.qk.batch, p.time, p.qk.heads, p.v.dim});
  Tensor lse = torch::stable::new_empty(v, {p.qk.batch, p.qk.heads, p.time}, ScalarType::Float);
  Tensor order = torch::stable::new_empty(v, {p.qk.batch, p.qk.heads, p.rounds, p.time}, ScalarType::Int);
  const Rows to(out);

  p.each_head([&](int64_t first_head, int64_t last_head) {
    Head head(p);
    Running running(p);
    Window window(p);
    const int64_t ld = (p.time + kFrames - 1) / kFrames * kFrames;
    std::vector<int32_t> buckets(p.rounds * ld);
    for (int64_t i = first_head; i < last_head; ++i) {
      float* sums = lse.mutable_data_ptr<float>() + i * p.time;
      int32_t* by = order.mutable_data_ptr<int32_t>() + i * p.rounds * p.time;
      head.read(i);
      const int64_t n = head.n, count = hash.buckets(n);
      if (count > 1) head.each_tile([&](int64_t t, int64_t) { hash.hash(head.x + t * p.d, p.d, n, &buckets[t], ld); });
      p.within(p.rounds, 1, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
          std::iota(by + r * p.time, by + (r + 1) * p.time, 0);
          if (count > 1) counting_sort(&buckets[r * ld], n, count, by + r * p.time);
        }
      });
      head.place(by);
      running.start(head);
      for (int64_t r = 0; r < p.rounds; ++r)
        window.each_range(head.chunks, [&](Window& w, int64_t first, int64_t last) {
          running.attend(head, w, r, first, last);
        });
      head.each_tile([&](int64_t first, int64_t frames) {
        for (int64_t t = first; t < first + frames; ++t) running.finish(head, t, sums + t);
        store_rows(to, head.b, head.h, first, frames, running.y + first * p.m, p.m);
      });
      zero_rows(to, head.b, head.h, n, p.time);
      std::fill(sums + n, sums + p.time, 0.0f);
    }
  });
  return {out, lse, order};
}

// The gradients of one head, in float32. With P = e^(score - lse), dS = P (dy·v - dy·y) and W = dS times the key's
// weight: dx_q += W x_k, and with e = Wᵀ x_q: dx_k += e - x_k (x_k·e) / (|x_k| (|x_k| + 1e-6)), keys being scaled to
// unit length.
struct Gradients {
  const float* lse;
  Buffer dy, part, dx, dv;  // part: dy·y

  explicit Gradients(const Problem& p)
      : lse(nullptr), dy(p.time * p.m), part(p.time), dx(p.time * p.d), dv(p.time * p.m) {}

  void gather(const Head& head, Window& w, int64_t round, int64_t c) {
    const Problem& p = head.p;
    w.gather(head, round, c);
    for (int64_t i = 0; i < head.count(c); ++i) {
      const int64_t t = w.time[w.row(c) + i];
      copy(w.dy + i * p.m, dy + t * p.m, p.m);
      w.lse[i] = lse[t];
      w.part[i] = part[t];
    }
  }

  // One query's scores, of `count` keys → P, its dy·v → W. P is at most 1, whatever rounding says of large scores.
  static void weigh(
      float* scores, float* slopes, const float* weights, int64_t count, const Query& q, float lse, float part) {
    for (int64_t i = 0; i < count; i += kWidth) {
      const vec weight = load(weights + i), x = load(scores + i) * weight - lse;
      const vec e = q.hidden(i) | (x < kNothing) ? vec{} : exp_within(min(vec{}, x));
      store(scores + i, e);
      store(slopes + i, e * (load(slopes + i) - part) * weight);
    }
  }

  // What a chunk received, as queries and as keys, goes to its frames.
  void put(const Head& head, const Window& w, int64_t c) {
    const Problem& p = head.p;
    for (int64_t row = w.row(c), i = row; i < row + head.count(c); ++i) {
      const int64_t t = w.time[i];
      const float *x = w.x + i * p.d, *e = w.dx + i * p.d, *rows = w.rows + i * p.d;
      const float size = head.norm[t] * (head.norm[t] + 1e-6f), along = size > 0 ? dot(x, e, p.d) / size : 0;
      float* to = dx + t * p.d;
      for (int64_t j = 0; j < p.d; j += kWidth)
        store(to + j, load(to + j) + load(rows + j) + (load(e + j) - along * load(x + j)));
      add(dv + t * p.m, w.dv + i * p.m, p.m);
    }
  }

  // Chunks first … last, as queries and as keys. The queries of chunk `last` still look back at the one before.
  void attend(const Head& head, Window& w, int64_t round, int64_t first_chunk, int64_t last_chunk) {
    const Problem& p = head.p;
    const int64_t stop = std::min(last_chunk + 1, head.chunks);
    if (first_chunk > 0) gather(head, w, round, first_chunk - 1);
    for (int64_t c = first_chunk; c < stop; ++c) {
      gather(head, w, round, c);
      Soon<5> soon{head.at(round, c + 1), c + 1 < stop ? head.count(c + 1) : 0,
                   {Matrix{head.x, p.d}, Matrix{head.v, p.m}, Matrix{dy, p.m}, Matrix{dx, p.d}, Matrix{dv, p.m}}};
      for (int64_t first = 0; first < head.count(c); first += kQueries) {
        const int64_t row = w.row(c) + first, queries = std::min(kQueries, head.count(c) - first);
        const float *x = w.x + row * p.d, *dy = w.dy + first * p.m;
        float* rows = w.rows + row * p.d;
        clear(rows, queries * p.d);
        w.each_panel(c, [&](const Panel& keys) {
          const int64_t count = keys.count, across = padded(count);
          product(w.scores, p.width, x, p.d, 1, w.across + keys.first * p.d, p.width, queries, across, p.qk.dim, soon);
          product(
              w.slopes, p.width, dy, p.m, 1, w.v_across + keys.first * p.m, p.width, queries, across, p.v.dim, soon);
          for (int64_t i = 0; i < queries; ++i)
            weigh(
                w.scores + i * p.width, w.slopes + i * p.width, w.weight + keys.first, count,
                Query(head, w, keys, w.time[row + i], round), w.lse[first + i], w.part[first + i]);
          gemm(w.dv + keys.first * p.m, p.m, w.scores, 1, p.width, dy, p.m, count, p.m, queries);
          gemm(w.dx + keys.first * p.d, p.d, w.slopes, 1, p.width, x, p.d, count, p.d, queries);
          gemm(rows, p.d, w.slopes, p.width, 1, w.x + keys.first * p.d, p.d, queries, p.d, count);
        });
      }
      if (c > first_chunk) put(head, w, c - 1);
    }
    if (last_chunk == head.chunks && first_chunk < last_chunk) put(head, w, last_chunk - 1);
  }
};

std::tuple<Tensor, Tensor> backward(
    Tensor dout, Tensor qk, Tensor v, Tensor lengths, Tensor out, Tensor lse, Tensor order, int64_t bucket_size,
    bool causal) {
  check_lsh_backward(dout, qk, v, lengths, out, lse, order, bucket_size);
  const Problem p(qk, v, lengths, order.size(2), bucket_size, causal, true);
  Tensor dqk = torch::stable::new_empty(qk, qk.sizes()), dv = torch::stable::new_empty(v, v.sizes());
  const Rows from(dout), result(out), to_qk(dqk), to_v(dv);

  p.each_head([&](int64_t first_head, int64_t last_head) {
    Head head(p);
    Gradients gradients(p);
    Window window(p);
    for (int64_t i = first_head; i < last_head; ++i) {
      head.read(i);
      head.place(order.const_data_ptr<int32_t>() + i * p.rounds * p.time);
      gradients.lse = lse.const_data_ptr<float>() + i * p.time;
      head.each_tile([&](int64_t first, int64_t count) {
        float *dy = gradients.dy + first * p.m, *y = gradients.dv + first * p.m;
        load_rows(from, head.b, head.h, first, count, dy, p.m);
        load_rows(result, head.b, head.h, first, count, y, p.m);
        for (int64_t t = 0; t < count; ++t) {
          gradients.part[first + t] = dot(dy + t * p.m, y + t * p.m, p.m);
          clear(y + t * p.m, p.m);
          const float alone = kSelf - gradients.lse[first + t];  // the weight of its own value
          if (alone > kNothing) add(y + t * p.m, dy + t * p.m, p.m, std::exp(alone));
        }
      });
      clear(gradients.dx, head.n * p.d);
      for (int64_t r = 0; r < p.rounds; ++r)
        window.each_range(head.chunks, [&](Window& w, int64_t first, int64_t last) {
          gradients.attend(head, w, r, first, last);
        });
      head.each_tile([&](int64_t first, int64_t count) {
        store_rows(to_qk, head.b, head.h, first, count, gradients.dx + first * p.d, p.d);
        store_rows(to_v, head.b, head.h, first, count, gradients.dv + first * p.m, p.m);
      });
      zero_rows(to_qk, head.b, head.h, head.n, p.time);
      zero_rows(to_v, head.b, head.h, head.n, p.time);
    }
  });
  return {dqk, dv};
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("lsh_attention", TORCH_BOX(&asr::forward));
  m.impl("lsh_attention_backward", TORCH_BOX(&asr::backward));
}
