// Bidirectional linear attention: y_i = φ(q_i)ᵀ S / (φ(q_i)ᵀ z + eps), S = Σ_j φ(k_j) v_jᵀ, z = Σ_j φ(k_j).
// Katharopoulos et al., "Transformers are RNNs", ICML 2020, equations 4 to 7. With rotary positions the numerator's
// φ(q), φ(k) are turned (Su et al., "RoFormer", 2021, equation 19).
//
// One pass over keys and values, one over queries. Sums are taken over segments of fixed length and these added in
// order: a row gives the same bits alone and in any batch, with one thread and with many.

#include <optional>
#include <string>
#include <tuple>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "gemm.h"
#include "linear_inputs.h"

namespace asr {
namespace {

constexpr int64_t kTile = 32;      // frames at once: a tile of k, v and their sum stay in a first-level cache of 32 KB

struct Problem : LinearInputs {
  int64_t state = q.dim * m + d;  // floats of one head's S and z

  using LinearInputs::LinearInputs;

  // Calls f(b, h, unit, start, stop) for the real frames of every segment of every head.
  template <typename F>
  void each_segment(const F& f) const {
    torch::stable::parallel_for(0, heads * segments, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t head = unit / segments, start = unit % segments * kSegment, b = head / q.heads;
        f(b, head % q.heads, unit, std::min(start, length(b)), std::min(start + kSegment, length(b)));
      }
    });
  }

  // Sums of segments → sums of heads, in order; they end up in the first segment's place.
  void fold(float* sums) const {
    torch::stable::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head)
        for (int64_t s = 1; s < segments; ++s)
          add(sums + head * segments * state, sums + (head * segments + s) * state, state);
    });
  }
};

std::tuple<Tensor, Tensor, Tensor> forward(
    Tensor q, Tensor k, Tensor v, Tensor lengths, std::optional<Tensor> table, std::string map, double eps) {
  const Problem p(q, k, v, lengths, table, map, eps);
  Tensor out = torch::stable::new_empty(v, {p.q.batch, p.q.time, p.q.heads, p.v.dim});
  Tensor kv = torch::stable::new_empty(v, {p.q.batch, p.q.heads, p.q.dim, p.v.dim}, ScalarType::Float);
  Tensor ksum = torch::stable::new_empty(v, {p.q.batch, p.q.heads, p.q.dim}, ScalarType::Float);
  const Rows y(out);
  const Buffer sums(p.heads * p.segments * p.state);

  p.each_segment([&](int64_t b, int64_t h, int64_t unit, int64_t start, int64_t stop) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), values(kTile * p.m);
    float* s = sums + unit * p.state;
    float* z = s + p.q.dim * p.m;
    clear(s, p.state);
    for (int64_t t = start; t < stop; t += kTile) {
      const int64_t count = std::min(kTile, stop - t);
      const float* f = p.features(p.k, b, h, t, count, phi, turned);
      const Matrix x = view_rows(p.v, b, h, t, count, values, p.m);
      gemm(s, p.m, f, 1, p.d, x.data, x.ld, p.q.dim, p.m, count);
      for (int64_t i = 0; i < count; ++i) add(z, phi + i * p.d, p.d);
    }
  });
  p.fold(sums);
  for (int64_t head = 0; head < p.heads; ++head) {
    const float* s = sums + head * p.segments * p.state;
    store_matrix(kv.mutable_data_ptr<float>() + head * p.q.dim * p.v.dim, s, p.q.dim, p.v.dim, p.m);
    std::copy_n(s + p.q.dim * p.m, p.q.dim, ksum.mutable_data_ptr<float>() + head * p.q.dim);
  }

  p.each_segment([&](int64_t b, int64_t h, int64_t unit, int64_t start, int64_t stop) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), result(kTile * p.m);
    const float* s = sums + unit / p.segments * p.segments * p.state;
    const float* z = s + p.q.dim * p.m;
    for (int64_t t = start; t < stop; t += kTile) {
      const int64_t count = std::min(kTile, stop - t);
      const float* f = p.features(p.q, b, h, t, count, phi, turned);
      clear(result, count * p.m);
      gemm(result, p.m, f, p.d, 1, s, p.m, count, p.m, p.q.dim);
      for (int64_t i = 0; i < count; ++i) scale(result + i * p.m, p.m, 1 / (dot(phi + i * p.d, z, p.d) + p.eps));
      store_rows(y, b, h, t, count, result, p.m);
    }
    const int64_t end = std::min((unit % p.segments + 1) * kSegment, p.q.time);
    zero_rows(y, b, h, std::max(stop, unit % p.segments * kSegment), end);
  });
  return {out, kv, ksum};
}

// With n = dy / den: dφ(q) = S n - z (φ(q)·S n) / den, and S, z receive Σ φ(q) nᵀ and Σ -φ(q) (φ(q)·S n) / den, which
// go on to k and v. φ(q)·S n = dy·y, so that y is not needed.
std::tuple<Tensor, Tensor, Tensor> backward(
    Tensor dout, Tensor q, Tensor k, Tensor v, Tensor lengths, std::optional<Tensor> table, Tensor kv, Tensor ksum,
    std::string map, double eps) {
  const Problem p(q, k, v, lengths, table, map, eps);
  const Rows dy = p.gradient(dout);
  Tensor dq = torch::stable::new_empty(q, q.sizes()), dk = torch::stable::new_empty(k, k.sizes());
  Tensor dv = torch::stable::new_empty(v, v.sizes());
  const Rows to_q(dq), to_k(dk), to_v(dv);
  const float *s_all = kv.const_data_ptr<float>(), *z_all = ksum.const_data_ptr<float>();
  const Buffer sums(p.heads * p.segments * p.state);

  p.each_segment([&](int64_t b, int64_t h, int64_t unit, int64_t start, int64_t stop) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), numerator(kTile * p.m), gradient(kTile * p.d);
    const Buffer s(p.d * p.m), across(p.m * p.d), z(p.d);
    const int64_t head = unit / p.segments;
    load_matrix(s, s_all + head * p.q.dim * p.v.dim, p.q.dim, p.v.dim, p.m);
    clear(s + p.q.dim * p.m, (p.d - p.q.dim) * p.m);
    transpose(across, p.d, s, p.m, p.d, p.m);
    load_matrix(z, z_all + head * p.q.dim, 1, p.q.dim, p.d);
    float* ds = sums + unit * p.state;
    float* dz = ds + p.q.dim * p.m;
    clear(ds, p.state);
    for (int64_t t = start; t < stop; t += kTile) {
      const int64_t count = std::min(kTile, stop - t);
      const float* f = p.features(p.q, b, h, t, count, phi, turned);
      load_rows(dy, b, h, t, count, numerator, p.m);
      float part[kTile];
      for (int64_t i = 0; i < count; ++i) {
        part[i] = 1 / (dot(phi + i * p.d, z, p.d) + p.eps);
        scale(numerator + i * p.m, p.m, part[i]);
      }
      clear(gradient, count * p.d);
      gemm(gradient, p.d, numerator, p.m, 1, across, p.d, count, p.d, p.v.dim);
      gemm(ds, p.m, f, 1, p.d, numerator, p.m, p.q.dim, p.m, count);
      for (int64_t i = 0; i < count; ++i) part[i] *= -dot(f + i * p.d, gradient + i * p.d, p.d);
      p.turn_back(gradient, turned, t, count);
      for (int64_t i = 0; i < count; ++i) {
        add(gradient + i * p.d, z, p.d, part[i]);
        add(dz, phi + i * p.d, p.d, part[i]);
      }
      apply_slope(p.map, gradient, phi, count, p.d);
      store_rows(to_q, b, h, t, count, gradient, p.d);
    }
    const int64_t from = unit % p.segments * kSegment, end = std::min(from + kSegment, p.q.time);
    zero_rows(to_q, b, h, std::max(stop, from), end);
  });
  p.fold(sums);

  p.each_segment([&](int64_t b, int64_t h, int64_t unit, int64_t start, int64_t stop) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), values(kTile * p.m), gradient(kTile * p.d);
    const Buffer s(p.d * p.m), across(p.m * p.d);
    const float* ds = sums + unit / p.segments * p.segments * p.state;
    const float* dz = ds + p.q.dim * p.m;
    std::copy_n(ds, p.q.dim * p.m, static_cast<float*>(s));
    clear(s + p.q.dim * p.m, (p.d - p.q.dim) * p.m);
    transpose(across, p.d, s, p.m, p.d, p.m);
    for (int64_t t = start; t < stop; t += kTile) {
      const int64_t count = std::min(kTile, stop - t);
      const float* f = p.features(p.k, b, h, t, count, phi, turned);
      const Matrix x = view_rows(p.v, b, h, t, count, values, p.m);
      clear(gradient, count * p.d);
      gemm(gradient, p.d, x.data, x.ld, 1, across, p.d, count, p.d, p.v.dim);
      clear(values, count * p.m);
      gemm(values, p.m, f, p.d, 1, ds, p.m, count, p.m, p.q.dim);
      store_rows(to_v, b, h, t, count, values, p.m);
      p.turn_back(gradient, turned, t, count);
      for (int64_t i = 0; i < count; ++i) add(gradient + i * p.d, dz, p.d);
      apply_slope(p.map, gradient, phi, count, p.d);
      store_rows(to_k, b, h, t, count, gradient, p.d);
    }
    const int64_t from = unit % p.segments * kSegment, end = std::min(from + kSegment, p.q.time);
    zero_rows(to_k, b, h, std::max(stop, from), end);
    zero_rows(to_v, b, h, std::max(stop, from), end);
  });
  return {dq, dk, dv};
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("linear_attention", TORCH_BOX(&asr::forward));
  m.impl("linear_attention_backward", TORCH_BOX(&asr::backward));
}
