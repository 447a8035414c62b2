// Causal linear attention with decay a per head and a state that goes on:
//
//     S_t = a S_{t-1} + φ(k_t) v_tᵀ     z_t = a z_{t-1} + φ(k_t)     y_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t + eps)
//
// Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 8 to 15 (a = 1); decay as in Sun et al.,
// "Retentive Network", 2023, equation 7, chunkwise. Without `normalise` there is no denominator.
//
// Inside a chunk masked matrix products, between chunks the state. The backward pass walks forward once for q and back once
// for k and v, computing the states anew: it stores two floats per frame and head. Every segment of fixed length starts
// from the exact state before it and sums its own part from zero, so that segments can be worked on at once where there are
// fewer heads than threads, and the bits are the same if they are not.

#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "feature_maps.h"
#include "gemm.h"

namespace asr {
namespace {

constexpr int64_t kChunk = 32;
constexpr int64_t kSegment = 512;  // a multiple of kChunk
static_assert(kChunk % kWidth == 0 && kSegment % kChunk == 0);

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

struct Problem {
  Rows q, k, v;
  const int64_t* lengths;
  const float *table, *decay;  // (time, dim) or null; (heads,) or null
  FeatureMap map;
  bool normalise;
  float eps;
  int64_t heads, segments, d, m, state;
  bool split;  // segments of one head at once

  Problem(
      const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, const Optional& table,
      const Optional& decay, const std::string& map, bool normalise, double eps)
      : q(q), k(k), v(v),
        lengths(lengths.const_data_ptr<int64_t>()),
        table(table ? table->const_data_ptr<float>() : nullptr),
        decay(decay ? decay->const_data_ptr<float>() : nullptr),
        map(feature_map(map)),
        normalise(normalise),
        eps(static_cast<float>(eps)),
        heads(this->q.batch * this->q.heads),
        segments(std::max<int64_t>(1, (this->q.time + kSegment - 1) / kSegment)),
        d(padded(this->q.dim)), m(padded(this->v.dim)),
        state(d * m + d),
        split(segments > 1 && heads < torch::stable::get_num_threads()) {
    check_rows(q, k, v, lengths);
    check_table(table, q);
    if (decay) check_state(*decay, {this->q.heads});
  }

  int64_t length(int64_t b) const { return std::clamp<int64_t>(lengths[b], 0, q.time); }
  Powers powers(int64_t h) const { return Powers(decay ? decay[h] : 1.0f); }

  // φ of rows start … start + count into `phi`; → what the numerator uses: phi itself, or `turned`.
  const float* features(const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, float* phi, float* turned) const {
    load_rows(x, b, h, start, count, phi, d);
    apply(map, phi, count, x.dim, d);
    if (!table) return phi;
    turn(turned, phi, table + start * x.dim, count, x.dim, d);
    return turned;
  }

  void turn_back(float* gradient, float* scratch, int64_t start, int64_t count) const {
    if (!table) return;
    std::copy_n(gradient, count * d, scratch);
    turn(gradient, scratch, table + start * q.dim, count, q.dim, d, -1);
  }

  // Walks the segments of every head in order, forwards or backwards: f(b, h, segment, before) works on a segment, given
  // the state before it, and adds its own part up in `part`; the state after it is a^frames · before + part. If segments
  // are worked on at once, f runs twice: first for the parts alone (write = false).
  template <typename F>
  void walk(const float* first_kv, const float* first_sum, float* last, bool forwards, const F& f) const {
    const auto begin_state = [&](int64_t head, float* to) {
      clear(to, state);
      if (!first_kv) return;
      load_matrix(to, first_kv + head * q.dim * v.dim, q.dim, v.dim, m);
      load_matrix(to + d * m, first_sum + head * q.dim, 1, q.dim, d);
    };
    const auto frames = [&](int64_t b, int64_t s) {
      return std::clamp<int64_t>(length(b) - s * kSegment, 0, kSegment);
    };
    const auto next = [&](int64_t head, int64_t s, float* running, const float* part) {
      scale(running, state, powers(head % q.heads).at(frames(head / q.heads, s)));
      add(running, part, state);
    };
    const auto nth = [&](int64_t i) { return forwards ? i : segments - 1 - i; };
    const auto finish = [&](int64_t head, const float* running) {
      std::copy_n(running, state, last + head * state);
    };
    if (!split) {
      torch::stable::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
        const Buffer running(state), part(state);
        for (int64_t head = begin; head < end; ++head) {
          begin_state(head, running);
          for (int64_t i = 0; i < segments; ++i) {
            clear(part, state);
            f(head / q.heads, head % q.heads, nth(i), running, part, true);
            next(head, nth(i), running, part);
          }
          finish(head, running);
        }
      });
      return;
    }
    const Buffer parts(heads * segments * state), starts(heads * segments * state);
    torch::stable::parallel_for(0, heads * segments, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        clear(parts + unit * state, state);
        const int64_t head = unit / segments;
        f(head / q.heads, head % q.heads, unit % segments, nullptr, parts + unit * state, false);
      }
    });
    const Buffer running(state);
    for (int64_t head = 0; head < heads; ++head) {
      begin_state(head, running);
      for (int64_t i = 0; i < segments; ++i) {
        const int64_t unit = head * segments + nth(i);
        std::copy_n(static_cast<float*>(running), state, starts + unit * state);
        next(head, nth(i), running, parts + unit * state);
      }
      finish(head, running);
    }
    torch::stable::parallel_for(0, heads * segments, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        clear(parts + unit * state, state);
        const int64_t head = unit / segments;
        f(head / q.heads, head % q.heads, unit % segments, starts + unit * state, parts + unit * state, true);
      }
    });
  }
};

// to (d x m) = a · before + part
void combine(float* to, const float* before, float a, const float* part, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(to + i, a * load(before + i) + load(part + i));
}

// to = rows of x, row r times a^(first + step·r).
const float* weighted(
    float* to, const float* x, int64_t ld, const Powers& a, int64_t first, int64_t step, int64_t count, int64_t width) {
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < width; i += kWidth) store(to + r * width + i, a[first + step * r] * load(x + r * ld + i));
  return to;
}

// p (count x kChunk) = the lower triangle of a bᵀ, row t, column s, times decay^(t-s); `across` is bᵀ (dim x kChunk).
void triangle(
    float* p, const float* a, int64_t lda, const float* across, int64_t dim, int64_t count, const Powers& decay) {
  clear(p, count * kChunk);
  for (int64_t t = 0; t < count; t += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - t);
    gemm(p + t * kChunk, kChunk, a + t * lda, lda, 1, across, kChunk, rows, padded(t + rows), dim);
  }
  for (int64_t t = 0; t < count; ++t) {
    if (decay.base != 1)
      for (int64_t s = 0; s <= t; ++s) p[t * kChunk + s] *= decay[t - s];
    std::fill(p + t * kChunk + t + 1, p + (t + 1) * kChunk, 0.0f);
  }
}

// y (count x ld) += p b, skipping the empty triangle.
void lower(float* y, int64_t ld, const float* p, const float* b, int64_t ldb, int64_t count, int64_t width) {
  for (int64_t t = 0; t < count; t += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - t);
    gemm(y + t * ld, ld, p + t * kChunk, kChunk, 1, b, ldb, rows, width, t + rows);
  }
}

// y (count x ld) += pᵀ b, likewise.
void upper(float* y, int64_t ld, const float* p, const float* b, int64_t ldb, int64_t count, int64_t width) {
  for (int64_t s = 0; s < count; s += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, count - s);
    gemm(y + s * ld, ld, p + s * kChunk + s, 1, kChunk, b + s * ldb, ldb, rows, width, count - s);
  }
}

// bᵀ of a chunk, (width x kChunk), with zeros for the frames that the last chunk lacks.
void turn_over(float* across, float* b, int64_t ldb, int64_t count, int64_t width, float* scratch) {
  if (count < kChunk) {  // b may be the caller's memory
    for (int64_t t = 0; t < count; ++t) std::copy_n(b + t * ldb, width, scratch + t * width);
    clear(scratch + count * width, (kChunk - count) * width);
    b = scratch, ldb = width;
  }
  transpose(across, kChunk, b, ldb, kChunk, width);
}

struct Workspace {
  Buffer phi_q, phi_k, turned_q, turned_k, values, gradient_d, gradient_m, scaled, scratch, across_d, across_m, p, dp, now,
      turned_state, z, sums, result;

  explicit Workspace(const Problem& x)
      : phi_q(kChunk * x.d), phi_k(kChunk * x.d), turned_q(kChunk * x.d), turned_k(kChunk * x.d), values(kChunk * x.m),
        gradient_d(kChunk * x.d), gradient_m(kChunk * x.m), scaled(kChunk * std::max(x.d, x.m)),
        scratch(kChunk * std::max(x.d, x.m)), across_d(x.d * kChunk), across_m(x.m * kChunk), p(kChunk * kChunk),
        dp(kChunk * kChunk), now(x.d * x.m), turned_state(x.d * x.m), z(x.d), sums(kChunk * x.d),
        result(kChunk * x.m) {}
};

// part += Σ_s a^(count-1-s) φ(k_s) v_sᵀ, after decaying what it holds over the chunk.
void absorb(
    const Problem& x, float* part, const float* f, const float* values, int64_t ldv, const Powers& a, int64_t count,
    float* scaled) {
  if (a.base != 1) {
    scale(part, x.d * x.m, a[count]);
    f = weighted(scaled, f, x.d, a, count - 1, -1, count, x.d);
  }
  gemm(part, x.m, f, 1, x.d, values, ldv, x.q.dim, x.m, count);
}

std::tuple<Tensor, Tensor, Tensor> forward(
    Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, Optional decay, Optional kv, Optional ksum,
    std::string map, bool normalise, double eps) {
  const Problem x(q, k, v, lengths, table, decay, map, normalise, eps);
  STD_TORCH_CHECK(kv.has_value() == ksum.has_value(), "give both kv and ksum, or neither");
  if (kv) check_state(*kv, {x.q.batch, x.q.heads, x.q.dim, x.v.dim}), check_state(*ksum, {x.q.batch, x.q.heads, x.q.dim});
  Tensor out = torch::stable::new_empty(v, {x.q.batch, x.q.time, x.q.heads, x.v.dim});
  Tensor last_kv = torch::stable::new_empty(v, {x.q.batch, x.q.heads, x.q.dim, x.v.dim}, ScalarType::Float);
  Tensor last_sum = torch::stable::new_empty(v, {x.q.batch, x.q.heads, x.q.dim}, ScalarType::Float);
  const Rows y(out);
  const Buffer last(x.heads * x.state);

  x.walk(
      kv ? kv->const_data_ptr<float>() : nullptr, ksum ? ksum->const_data_ptr<float>() : nullptr, last, true,
      [&](int64_t b, int64_t h, int64_t segment, const float* before, float* part, bool write) {
        const Powers a = x.powers(h);
        Workspace w(x);
        const int64_t start = segment * kSegment, end = std::min(start + kSegment, x.q.time);
        const int64_t stop = std::clamp(x.length(b), start, end);
        float* part_z = part + x.d * x.m;
        for (int64_t t = start; t < stop; t += kChunk) {
          const int64_t count = std::min(kChunk, stop - t);
          const float* fk = x.features(x.k, b, h, t, count, w.phi_k, w.turned_k);
          const Matrix values = view_rows(x.v, b, h, t, count, w.values, x.m);
          if (write) {
            const float* fq = x.features(x.q, b, h, t, count, w.phi_q, w.turned_q);
            combine(w.now, before, a.at(t - start), part, x.d * x.m);
            clear(w.gradient_m, count * x.m);
            const float* reach = a.base == 1 ? fq : weighted(w.scaled, fq, x.d, a, 1, 1, count, x.d);
            gemm(w.gradient_m, x.m, reach, x.d, 1, w.now, x.m, count, x.m, x.q.dim);
            turn_over(w.across_d, const_cast<float*>(fk), x.d, count, x.d, w.scratch);
            triangle(w.p, fq, x.d, w.across_d, x.q.dim, count, a);
            lower(w.gradient_m, x.m, w.p, values.data, values.ld, count, x.m);
          }
          for (int64_t i = 0; i < count; ++i) {
            if (a.base != 1) scale(part_z, x.d, a.base);
            add(part_z, w.phi_k + i * x.d, x.d);
            if (!write || !x.normalise) continue;
            combine(w.z, before + x.d * x.m, a.at(t - start + i + 1), part_z, x.d);
            scale(w.gradient_m + i * x.m, x.m, 1 / (dot(w.phi_q + i * x.d, w.z, x.d) + x.eps));
          }
          if (write) store_rows(y, b, h, t, count, w.gradient_m, x.m);
          absorb(x, part, fk, values.data, values.ld, a, count, w.scaled);
        }
        if (write) zero_rows(y, b, h, stop, end);
      });
  for (int64_t head = 0; head < x.heads; ++head) {
    const float* s = last + head * x.state;
    store_matrix(last_kv.mutable_data_ptr<float>() + head * x.q.dim * x.v.dim, s, x.q.dim, x.v.dim, x.m);
    std::copy_n(s + x.d * x.m, x.q.dim, last_sum.mutable_data_ptr<float>() + head * x.q.dim);
  }
  return {out, last_kv, last_sum};
}

// With n_t = dy_t / den_t and c_t = -(dy_t·y_t) / den_t = -(φ(q_t)·S_t n_t) / den_t:
//     dφ(q_t) = S_t n_t + c_t z_t                              forwards, with the states of the forward pass
//     dφ(k_s) = R_s v_s + r_s,  dv_s = R_sᵀ φ(k_s)             backwards
//     R_s = Σ_{t≥s} a^(t-s) φ(q_t) n_tᵀ,  r_s = Σ_{t≥s} a^(t-s) c_t φ(q_t)
// The slope of ln a is Σ_t t (φ(q_t)·dφ(q_t) - φ(k_t)·dφ(k_t)), with the initial state as a key at -1 and the final one as a
// query at the last frame.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    Tensor dout, Tensor dkv, Tensor dksum, Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, Optional decay,
    Optional kv, Optional ksum, Tensor last_kv, Tensor last_sum, std::string map, bool normalise, double eps) {
  const Problem x(q, k, v, lengths, table, decay, map, normalise, eps);
  const Rows dy(dout);
  check_state(dkv, {x.q.batch, x.q.heads, x.q.dim, x.v.dim}), check_state(dksum, {x.q.batch, x.q.heads, x.q.dim});
  Tensor dq = torch::stable::new_empty(q, q.sizes()), dk = torch::stable::new_empty(k, k.sizes());
  Tensor dv = torch::stable::new_empty(v, v.sizes());
  Tensor first_kv = torch::stable::new_empty(dkv, dkv.sizes()), first_sum = torch::stable::new_empty(dksum, dksum.sizes());
  Tensor slope = torch::stable::new_zeros(v, {x.q.batch, x.q.heads}, ScalarType::Float);
  const Rows to_q(dq), to_k(dk), to_v(dv);
  const Buffer inverse(x.heads * x.q.time), pull(x.heads * x.q.time);  // 1 / den_t and c_t
  const Buffer slopes(2 * x.heads * x.segments), last(x.heads * x.state);
  clear(slopes, 2 * x.heads * x.segments);
  const float* initial[2] = {kv ? kv->const_data_ptr<float>() : nullptr, ksum ? ksum->const_data_ptr<float>() : nullptr};

  // The state is held transposed here, S_tᵀ, because it stands on the right of n_t.
  x.walk(
      initial[0], initial[1], last, true,
      [&](int64_t b, int64_t h, int64_t segment, const float* before, float* part, bool write) {
        const Powers a = x.powers(h);
        Workspace w(x);
        const int64_t start = segment * kSegment, end = std::min(start + kSegment, x.q.time);
        const int64_t stop = std::clamp(x.length(b), start, end), head = b * x.q.heads + h;
        float* part_z = part + x.d * x.m;
        double total = 0;
        for (int64_t t = start; t < stop; t += kChunk) {
          const int64_t count = std::min(kChunk, stop - t);
          const float* fk = x.features(x.k, b, h, t, count, w.phi_k, w.turned_k);
          const Matrix values = view_rows(x.v, b, h, t, count, w.values, x.m);
          if (!write) {
            for (int64_t i = 0; i < count; ++i) {
              if (a.base != 1) scale(part_z, x.d, a.base);
              add(part_z, w.phi_k + i * x.d, x.d);
            }
            absorb(x, part, fk, values.data, values.ld, a, count, w.scaled);
            continue;
          }
          const float* fq = x.features(x.q, b, h, t, count, w.phi_q, w.turned_q);
          load_rows(dy, b, h, t, count, w.gradient_m, x.m);
          float* weights = inverse + head * x.q.time + t;
          for (int64_t i = 0; i < count; ++i) {
            if (a.base != 1) scale(part_z, x.d, a.base);
            add(part_z, w.phi_k + i * x.d, x.d);
            combine(w.sums + i * x.d, before + x.d * x.m, a.at(t - start + i + 1), part_z, x.d);
            weights[i] = x.normalise ? 1 / (dot(w.phi_q + i * x.d, w.sums + i * x.d, x.d) + x.eps) : 1;
            scale(w.gradient_m + i * x.m, x.m, weights[i]);
          }
          combine(w.now, before, a.at(t - start), part, x.d * x.m);
          transpose(w.turned_state, x.d, w.now, x.m, x.d, x.m);
          clear(w.gradient_d, count * x.d);
          const float* reach = a.base == 1 ? static_cast<float*>(w.gradient_m)
                                           : weighted(w.scaled, w.gradient_m, x.m, a, 1, 1, count, x.m);
          gemm(w.gradient_d, x.d, reach, x.m, 1, w.turned_state, x.d, count, x.d, x.v.dim);
          turn_over(w.across_m, const_cast<float*>(values.data), values.ld, count, x.m, w.scratch);
          triangle(w.dp, w.gradient_m, x.m, w.across_m, x.v.dim, count, a);
          lower(w.gradient_d, x.d, w.dp, fk, x.d, count, x.d);
          float* c = pull + head * x.q.time + t;
          for (int64_t i = 0; i < count; ++i)
            c[i] = x.normalise ? -weights[i] * dot(fq + i * x.d, w.gradient_d + i * x.d, x.d) : 0;
          x.turn_back(w.gradient_d, w.scratch, t, count);
          for (int64_t i = 0; i < count; ++i) {
            add(w.gradient_d + i * x.d, w.sums + i * x.d, x.d, c[i]);
            if (x.decay) total += static_cast<double>(t + i) * dot(w.phi_q + i * x.d, w.gradient_d + i * x.d, x.d);
          }
          apply_slope(x.map, w.gradient_d, w.phi_q, count, x.d);
          store_rows(to_q, b, h, t, count, w.gradient_d, x.d);
          absorb(x, part, fk, values.data, values.ld, a, count, w.scaled);
        }
        if (!write) return;
        slopes[2 * (head * x.segments + segment)] = static_cast<float>(total);
        zero_rows(to_q, b, h, stop, end);
      });

  x.walk(
      dkv.const_data_ptr<float>(), dksum.const_data_ptr<float>(), last, false,
      [&](int64_t b, int64_t h, int64_t segment, const float* after, float* part, bool write) {
        const Powers a = x.powers(h);
        Workspace w(x);
        const int64_t start = segment * kSegment, end = std::min(start + kSegment, x.q.time);
        const int64_t stop = std::clamp(x.length(b), start, end), head = b * x.q.heads + h;
        float* part_z = part + x.d * x.m;
        double total = 0;
        const int64_t chunks = (stop - start + kChunk - 1) / kChunk;
        for (int64_t t = start + (chunks - 1) * kChunk; t >= start; t -= kChunk) {
          const int64_t count = std::min(kChunk, stop - t), last_frame = t + count - 1;
          const float* fq = x.features(x.q, b, h, t, count, w.phi_q, w.turned_q);
          const float *weights = inverse + head * x.q.time + t, *c = pull + head * x.q.time + t;
          load_rows(dy, b, h, t, count, w.gradient_m, x.m);
          for (int64_t i = 0; i < count; ++i) scale(w.gradient_m + i * x.m, x.m, weights[i]);
          if (write) {
            const float* fk = x.features(x.k, b, h, t, count, w.phi_k, w.turned_k);
            const Matrix values = view_rows(x.v, b, h, t, count, w.values, x.m);
            const float far = a.at(stop - 1 - last_frame);  // from the chunk's last frame to the segment's
            combine(w.now, after, far, part, x.d * x.m);
            transpose(w.turned_state, x.d, w.now, x.m, x.d, x.m);
            clear(w.gradient_d, count * x.d);
            const float* reach =
                a.base == 1 ? values.data : weighted(w.scaled, values.data, values.ld, a, count - 1, -1, count, x.m);
            gemm(w.gradient_d, x.d, reach, a.base == 1 ? values.ld : x.m, 1, w.turned_state, x.d, count, x.d, x.v.dim);
            turn_over(w.across_m, const_cast<float*>(values.data), values.ld, count, x.m, w.scratch);
            triangle(w.dp, w.gradient_m, x.m, w.across_m, x.v.dim, count, a);
            upper(w.gradient_d, x.d, w.dp, fq, x.d, count, x.d);
            x.turn_back(w.gradient_d, w.scratch, t, count);

            clear(w.result, count * x.m);
            reach = a.base == 1 ? fk : weighted(w.scaled, fk, x.d, a, count - 1, -1, count, x.d);
            gemm(w.result, x.m, reach, x.d, 1, w.now, x.m, count, x.m, x.q.dim);
            turn_over(w.across_d, const_cast<float*>(fk), x.d, count, x.d, w.scratch);
            triangle(w.p, fq, x.d, w.across_d, x.q.dim, count, a);
            upper(w.result, x.m, w.p, w.gradient_m, x.m, count, x.m);
            store_rows(to_v, b, h, t, count, w.result, x.m);
          }
          // part_z: r without what comes after the segment.
          for (int64_t i = count - 1; i >= 0; --i) {
            if (a.base != 1) scale(part_z, x.d, a.base);
            add(part_z, w.phi_q + i * x.d, x.d, c[i]);
            if (!write) continue;
            combine(w.z, after + x.d * x.m, a.at(stop - 1 - t - i), part_z, x.d);
            add(w.gradient_d + i * x.d, w.z, x.d);
            if (x.decay) total -= static_cast<double>(t + i) * dot(w.phi_k + i * x.d, w.gradient_d + i * x.d, x.d);
          }
          if (write) {
            apply_slope(x.map, w.gradient_d, w.phi_k, count, x.d);
            store_rows(to_k, b, h, t, count, w.gradient_d, x.d);
          }
          // part becomes Σ_{t'≥t} a^(t'-(t-1)) …: what the frame before this chunk sees of it.
          if (a.base != 1) scale(part, x.d * x.m, a[count]);
          const float* f = a.base == 1 ? fq : weighted(w.scaled, fq, x.d, a, 1, 1, count, x.d);
          gemm(part, x.m, f, 1, x.d, w.gradient_m, x.m, x.q.dim, x.m, count);
        }
        if (a.base != 1 && stop > start) scale(part_z, x.d, a.base);  // likewise seen from the frame before the segment
        if (!write) return;
        slopes[2 * (head * x.segments + segment) + 1] = static_cast<float>(total);
        zero_rows(to_k, b, h, stop, end);
        zero_rows(to_v, b, h, stop, end);
      });

  for (int64_t head = 0; head < x.heads; ++head) {
    const float* s = last + head * x.state;
    float* to_kv = first_kv.mutable_data_ptr<float>() + head * x.q.dim * x.v.dim;
    float* to_sum = first_sum.mutable_data_ptr<float>() + head * x.q.dim;
    store_matrix(to_kv, s, x.q.dim, x.v.dim, x.m);
    std::copy_n(s + x.d * x.m, x.q.dim, to_sum);
    if (!x.decay) continue;
    double total = 0;
    for (int64_t i = 0; i < 2 * x.segments; ++i) total += slopes[2 * head * x.segments + i];
    const double final_frame = static_cast<double>(x.length(head / x.q.heads)) - 1;
    const auto inner = [&](const float* a, const float* b, int64_t n) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
      return sum;
    };
    const int64_t at_kv = head * x.q.dim * x.v.dim, at_sum = head * x.q.dim, n = x.q.dim * x.v.dim;
    total += final_frame * inner(last_kv.const_data_ptr<float>() + at_kv, dkv.const_data_ptr<float>() + at_kv, n);
    total += final_frame * inner(last_sum.const_data_ptr<float>() + at_sum, dksum.const_data_ptr<float>() + at_sum, x.q.dim);
    if (kv) total += inner(initial[0] + at_kv, to_kv, n) + inner(initial[1] + at_sum, to_sum, x.q.dim);
    slope.mutable_data_ptr<float>()[head] = static_cast<float>(total);
  }
  return {dq, dk, dv, first_kv, first_sum, slope};
}

// One frame: q, k (batch, heads, dim), v (batch, heads, width), table (dim,); the state is updated in place.
Tensor step(
    Tensor q, Tensor k, Tensor v, Optional table, Optional decay, Tensor kv, Tensor ksum, std::string map, bool normalise,
    double eps) {
  const auto row = [](const Tensor& t) { return torch::stable::unsqueeze(t, 1); };
  const Rows rq(row(q)), rk(row(k)), rv(row(v));
  check_state(kv, {rq.batch, rq.heads, rq.dim, rv.dim}), check_state(ksum, {rq.batch, rq.heads, rq.dim});
  if (decay) check_state(*decay, {rq.heads});
  if (table) check_state(*table, {rq.dim});
  Tensor out = torch::stable::new_empty(v, {rq.batch, rq.heads, rv.dim});
  const Rows ry(row(out));
  const FeatureMap phi = feature_map(map);
  const int64_t d = padded(rq.dim), m = padded(rv.dim);
  const Buffer a(2 * d), b(2 * d), values(m), result(m);
  for (int64_t head = 0; head < rq.batch * rq.heads; ++head) {
    const int64_t n = head / rq.heads, h = head % rq.heads;
    const float fade = decay ? decay->const_data_ptr<float>()[h] : 1;
    float *s = kv.mutable_data_ptr<float>() + head * rq.dim * rv.dim, *z = ksum.mutable_data_ptr<float>() + head * rq.dim;
    load_rows(rq, n, h, 0, 1, a, d), load_rows(rk, n, h, 0, 1, b, d), load_rows(rv, n, h, 0, 1, values, m);
    apply(phi, a, 1, rq.dim, d), apply(phi, b, 1, rq.dim, d);
    float *fq = a, *fk = b;
    if (table) {
      turn(fq += d, a, table->const_data_ptr<float>(), 1, rq.dim, d);
      turn(fk += d, b, table->const_data_ptr<float>(), 1, rq.dim, d);
    }
    clear(result, m);
    float den = static_cast<float>(eps);
    for (int64_t i = 0; i < rq.dim; ++i) {
      z[i] = fade * z[i] + b[i];
      den += a[i] * z[i];
      float* line = s + i * rv.dim;
      for (int64_t j = 0; j < rv.dim; ++j) {
        line[j] = fade * line[j] + fk[i] * values[j];
        result[j] += fq[i] * line[j];
      }
    }
    if (normalise) scale(result, m, 1 / den);
    store_rows(ry, n, h, 0, 1, result, m);
  }
  return out;
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("causal_linear_attention", TORCH_BOX(&asr::forward));
  m.impl("causal_linear_attention_backward", TORCH_BOX(&asr::backward));
  m.impl("causal_linear_step", TORCH_BOX(&asr::step));
}
