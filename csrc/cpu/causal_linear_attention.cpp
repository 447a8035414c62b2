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
// fewer heads than threads, and the bits are the same if they are not. Otherwise the heads of a row, which lie side by side
// in memory, are walked together, a stretch of each in turn.

#include <tuple>

#include <torch/csrc/stable/library.h>

#include "causal_chunk.h"

namespace asr::causal {
namespace {

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

  x.run({Walk{
      kv ? kv->const_data_ptr<float>() : nullptr, ksum ? ksum->const_data_ptr<float>() : nullptr, last, true, false,
      [&](const Piece& at, const float* before, float* part, bool write, Workspace& w) {
        const auto [b, h, stop] = std::tuple(at.b, at.h, at.stop);
        const Powers a = x.powers(h);
        float* part_z = part + x.d * x.m;
        const float* before_z = before ? before + x.d * x.m : nullptr;
        for (int64_t t = at.start; t < stop; t += kChunk) {
          const int64_t count = std::min(kChunk, stop - t);
          const float* fk = x.features(x.k, b, h, t, count, w.phi_k, w.turned_k, false);
          const Matrix values = view_rows(x.v, b, h, t, count, w.values, x.m);
          if (write) {
            const float* fq = x.features(x.q, b, h, t, count, w.phi_q, w.turned_q, false);
            const float* s = combine(w.now, before, a.at(t - at.first), part, x.d * x.m);
            const float* reach = a.base == 1 ? fq : weighted(w.scaled, fq, x.d, a, 1, 1, count, x.d);
            const int64_t turns = tiles(count, x.m);
            Ahead next_q = at.ahead(x.q, t, turns), next_y = at.ahead(y, t, turns);
            turn_over(w.across_d, const_cast<float*>(fk), x.d, count, x.d, w.scratch);
            triangle(w.p, fq, x.d, w.across_d, x.q.dim, count, a);
            lower(
                w.result, x.m, {reach, x.d, 1, s, x.m, x.q.dim}, w.p, values.data, values.ld, count, x.m,
                [&] { next_q(), next_y(); });
          }
          if (write && x.normalise) {
            remember(part_z, w.phi_k, count, x.d, a, 1, nullptr, w.sums, before_z, a.at(t - at.first + 1));
            x.inverse(w.weights, w.phi_q, w.sums, x.d, count);
            store_rows(
                y, b, h, t, count, w.result, x.m, [&](vec sum, int64_t i, int64_t) { return sum * w.weights[i]; });
          } else {
            remember(part_z, w.phi_k, count, x.d, a);
            if (write) store_rows(y, b, h, t, count, w.result, x.m);
          }
          const int64_t turns = tiles(x.q.dim, x.m);
          Ahead next_k = at.ahead(x.k, t, turns), next_v = at.ahead(x.v, t, turns);
          const float* f = decayed(x, part, fk, a, count, w.scaled);
          gemm(part, x.m, f, 1, x.d, values.data, values.ld, x.q.dim, x.m, count, [&] { next_k(), next_v(); });
        }
        if (write) zero_rows(y, b, h, stop, at.end);
      }}});
  for (int64_t head = 0; head < x.heads; ++head) {
    const float* s = last + head * x.state;
    store_matrix(last_kv.mutable_data_ptr<float>() + head * x.q.dim * x.v.dim, s, x.q.dim, x.v.dim, x.m);
    std::copy_n(s + x.d * x.m, x.q.dim, last_sum.mutable_data_ptr<float>() + head * x.q.dim);
  }
  return {out, last_kv, last_sum};
}

// One frame: q, k (batch, heads, dim), v (batch, heads, width), table (dim,); the state is updated in place.
Tensor step(
    Tensor q, Tensor k, Tensor v, Optional table, Optional decay, Tensor kv, Tensor ksum, std::string map, bool normalise,
    double eps) {
  const Rows rq = Rows::one_frame(q), rk = Rows::one_frame(k), rv = Rows::one_frame(v);
  STD_TORCH_CHECK(
      rk.batch == rq.batch && rk.heads == rq.heads && rk.dim == rq.dim && rv.batch == rq.batch && rv.heads == rq.heads &&
          rk.type == rq.type && rv.type == rq.type,
      "q, k and v differ in shape or dtype");
  check_state(kv, {rq.batch, rq.heads, rq.dim, rv.dim}), check_state(ksum, {rq.batch, rq.heads, rq.dim});
  if (decay) check_state(*decay, {rq.heads});
  if (table) check_state(*table, {rq.dim});
  Tensor out = torch::stable::new_empty(v, {rq.batch, rq.heads, rv.dim});
  const Rows ry = Rows::one_frame(out);
  const FeatureMap phi = feature_map(map);
  const int64_t d = padded(rq.dim), m = padded(rv.dim);
  const Buffer a(2 * d), b(2 * d), values(m), result(m);
  for (int64_t head = 0; head < rq.batch * rq.heads; ++head) {
    const int64_t n = head / rq.heads, h = head % rq.heads;
    const float fade = decay ? decay->const_data_ptr<float>()[h] : 1;
    float *s = kv.mutable_data_ptr<float>() + head * rq.dim * rv.dim, *z = ksum.mutable_data_ptr<float>() + head * rq.dim;
    load_features(phi, rq, n, h, 0, 1, a, d), load_features(phi, rk, n, h, 0, 1, b, d);
    load_rows(rv, n, h, 0, 1, values, m);
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
}  // namespace asr::causal

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("causal_linear_attention", TORCH_BOX(&asr::causal::forward));
  m.impl("causal_linear_step", TORCH_BOX(&asr::causal::step));
}
