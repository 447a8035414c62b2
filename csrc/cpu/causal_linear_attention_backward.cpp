// The gradients of causal linear attention (causal_linear_attention.cpp).
//
// With n_t = dy_t / den_t and c_t = -(dy_t·y_t) / den_t = -(φ(q_t)·S_t n_t) / den_t:
//     dφ(q_t) = S_t n_t + c_t z_t                              forwards, with the forward pass's states, transposed
//     dφ(k_s) = R_s v_s + r_s,  dv_s = R_sᵀ φ(k_s)             backwards
//     R_s = Σ_{t≥s} a^(t-s) φ(q_t) n_tᵀ,  r_s = Σ_{t≥s} a^(t-s) c_t φ(q_t)
// The slope of ln a is Σ_t t (φ(q_t)·dφ(q_t) - φ(k_t)·dφ(k_t)), with the initial state as a key at -1 and the final one as a
// query at the last frame.

#include <tuple>

#include <torch/csrc/stable/library.h>

#include "causal_chunk.h"

namespace asr::causal {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    Tensor dout, Tensor dkv, Tensor dksum, Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, Optional decay,
    Optional kv, Optional ksum, Tensor last_kv, Tensor last_sum, std::string map, bool normalise, double eps) {
  const Problem x(q, k, v, lengths, table, decay, map, normalise, eps);
  const Rows dy = x.gradient(dout);
  check_state(dkv, {x.q.batch, x.q.heads, x.q.dim, x.v.dim}), check_state(dksum, {x.q.batch, x.q.heads, x.q.dim});
  Tensor dq = torch::stable::new_empty(q, q.sizes()), dk = torch::stable::new_empty(k, k.sizes());
  Tensor dv = torch::stable::new_empty(v, v.sizes());
  Tensor first_kv = torch::stable::new_empty(dkv, dkv.sizes()), first_sum = torch::stable::new_empty(dksum, dksum.sizes());
  Tensor slope = torch::stable::new_zeros(v, {x.q.batch, x.q.heads}, ScalarType::Float);
  const Rows to_q(dq), to_k(dk), to_v(dv);
  const Buffer inverse(x.heads * x.q.time), pull(x.heads * x.q.time);  // 1 / den_t and c_t
  const Buffer last(x.heads * x.state);
  std::vector<double> slopes(2 * x.heads * x.segments);  // of each head and segment, forwards and back
  const float* initial[2] = {kv ? kv->const_data_ptr<float>() : nullptr, ksum ? ksum->const_data_ptr<float>() : nullptr};

  const Walk ahead{
      initial[0], initial[1], last, true, true,
      [&](const Piece& at, const float* before, float* part, bool write, Workspace& w) {
        const auto [b, h, head, start, stop] = std::tuple(at.b, at.h, at.head, at.start, at.stop);
        const Powers a = x.powers(h);
        float* part_z = part + x.d * x.m;
        const float* before_z = before ? before + x.d * x.m : nullptr;
        double total = 0;
        for (int64_t t = start; t < stop; t += kChunk) {
          const int64_t count = std::min(kChunk, stop - t);
          const float* fk = x.features(x.k, b, h, t, count, w.phi_k, w.turned_k, false);
          const Matrix values = view_rows(x.v, b, h, t, count, w.values, x.m);
          int64_t turns = tiles(x.q.dim, x.m);
          Ahead next_k = at.ahead(x.k, t, turns), next_v = at.ahead(x.v, t, turns);
          const auto absorb = [&] {
            const float* f = decayed(x, part, fk, a, count, w.scaled);
            gemm(part, x.d, values.data, 1, values.ld, f, x.d, x.v.dim, x.d, count, [&] { next_k(), next_v(); });
          };
          if (!write) {
            remember(part_z, w.phi_k, count, x.d, a);
            absorb();
            continue;
          }
          const float* fq = x.features(x.q, b, h, t, count, w.phi_q, w.turned_q, false);
          float* weights = inverse + head * x.q.time + t;
          remember(part_z, w.phi_k, count, x.d, a, 1, nullptr, w.sums, before_z, a.at(t - at.first + 1));
          if (x.normalise) x.inverse(weights, w.phi_q, w.sums, x.d, count);
          else std::fill_n(weights, count, 1.0f);
          load_rows(dy, b, h, t, count, w.gradient_m, x.m, [=](vec g, int64_t i) { return g * weights[i]; }, false);
          const float* s = combine(w.now, before, a.at(t - at.first), part, x.d * x.m);
          const float* reach = a.base == 1 ? static_cast<float*>(w.gradient_m)
                                           : weighted(w.scaled, w.gradient_m, x.m, a, 1, 1, count, x.m);
          turns = tiles(count, x.d);
          Ahead next_q = at.ahead(x.q, t, turns), next_dy = at.ahead(dy, t, turns), next_dq = at.ahead(to_q, t, turns);
          turn_over(w.across_m, const_cast<float*>(values.data), values.ld, count, x.m, w.scratch);
          triangle(w.dp, w.gradient_m, x.m, w.across_m, x.v.dim, count, a);
          lower(
              w.gradient_d, x.d, {reach, x.m, 1, s, x.d, x.v.dim}, w.dp, fk, x.d, count, x.d,
              [&] { next_q(), next_dy(), next_dq(); });
          float* c = pull + head * x.q.time + t;
          for (int64_t i = 0; i < count; ++i)
            c[i] = x.normalise ? -weights[i] * dot(fq + i * x.d, w.gradient_d + i * x.d, x.d) : 0;
          x.turn_back(w.gradient_d, w.scratch, t, count);
          if (x.decay)
            for (int64_t i = 0; i < count; ++i)
              total += static_cast<double>(t + i) *
                       dot_of_sum(w.phi_q + i * x.d, w.gradient_d + i * x.d, w.sums + i * x.d, c[i], x.d);
          store_gradient(x.map, to_q, b, h, t, count, w.gradient_d, w.phi_q, x.d, c, w.sums, x.d);
          absorb();
        }
        if (!write) return;
        slopes[2 * (head * x.segments + at.segment)] += total;
        zero_rows(to_q, b, h, stop, at.end);
      }};

  const Walk back{
      dkv.const_data_ptr<float>(), dksum.const_data_ptr<float>(), last, false, false,
      [&](const Piece& at, const float* after, float* part, bool write, Workspace& w) {
        const auto [b, h, head, start, stop] = std::tuple(at.b, at.h, at.head, at.start, at.stop);
        const Powers a = x.powers(h);
        float* part_z = part + x.d * x.m;
        const float* after_z = after ? after + x.d * x.m : nullptr;
        double total = 0;
        const int64_t chunks = (stop - start + kChunk - 1) / kChunk;
        for (int64_t t = start + (chunks - 1) * kChunk; t >= start; t -= kChunk) {
          const int64_t count = std::min(kChunk, stop - t), last_frame = t + count - 1;
          const float* fq = x.features(x.q, b, h, t, count, w.phi_q, w.turned_q, false);
          const float *weights = inverse + head * x.q.time + t, *c = pull + head * x.q.time + t;
          load_rows(dy, b, h, t, count, w.gradient_m, x.m, [=](vec g, int64_t i) { return g * weights[i]; }, false);
          const float far = a.at(at.last - 1 - last_frame);  // from the chunk's last frame to the segment's
          if (write) {
            const float* fk = x.features(x.k, b, h, t, count, w.phi_k, w.turned_k, false);
            const Matrix values = view_rows(x.v, b, h, t, count, w.values, x.m);
            const float* r = combine(w.now, after, far, part, x.d * x.m);
            const int64_t turns = tiles(x.d, kChunk);
            Ahead next_k = at.ahead(x.k, t, turns), next_v = at.ahead(x.v, t, turns);
            Ahead next_dk = at.ahead(to_k, t, turns), next_dv = at.ahead(to_v, t, turns);
            turn_over(w.across_m, const_cast<float*>(values.data), values.ld, count, x.m, w.scratch);
            product(w.across_d, kChunk, r, x.m, 1, w.across_m, kChunk, x.d, kChunk, x.v.dim, [&] { next_k(), next_v(); });
            transpose(w.gradient_d, x.d, w.across_d, kChunk, x.d, kChunk);
            if (a.base != 1) weighted(w.gradient_d, w.gradient_d, x.d, a, count - 1, -1, count, x.d);
            triangle(w.dp, w.gradient_m, x.m, w.across_m, x.v.dim, count, a);
            upper<true>(w.gradient_d, x.d, w.dp, fq, x.d, count, x.d, Nothing{});
            x.turn_back(w.gradient_d, w.scratch, t, count);

            const float* reach = a.base == 1 ? fk : weighted(w.scaled, fk, x.d, a, count - 1, -1, count, x.d);
            turn_over(w.across_d, const_cast<float*>(fk), x.d, count, x.d, w.scratch);
            triangle(w.p, fq, x.d, w.across_d, x.q.dim, count, a);
            upper<false>(
                w.result, x.m, w.p, w.gradient_m, x.m, count, x.m, [&] { next_dk(), next_dv(); },
                Factors{reach, x.d, 1, r, x.m, x.q.dim});
            store_rows(to_v, b, h, t, count, w.result, x.m);
          }
          // part_z: r without what comes after the segment.
          float* sums = write ? static_cast<float*>(w.sums) : nullptr;
          remember(part_z, w.phi_q, count, x.d, a, -1, c, sums, sums ? after_z : nullptr, far);
          if (write) {
            if (x.decay)
              for (int64_t i = 0; i < count; ++i)
                total -= static_cast<double>(t + i) *
                         dot_of_sum(w.phi_k + i * x.d, w.gradient_d + i * x.d, w.sums + i * x.d, 1, x.d);
            store_gradient(x.map, to_k, b, h, t, count, w.gradient_d, w.phi_k, x.d, kOnes.data(), w.sums, x.d);
          }
          // part becomes Σ_{t'≥t} a^(t'-(t-1)) …: what the frame before this chunk sees of it.
          if (a.base != 1) scale(part, x.d * x.m, a[count]);
          const float* f = a.base == 1 ? fq : weighted(w.scaled, fq, x.d, a, 1, 1, count, x.d);
          const int64_t turns = tiles(x.q.dim, x.m);
          Ahead next_q = at.ahead(x.q, t, turns), next_dy = at.ahead(dy, t, turns);
          gemm(part, x.m, f, 1, x.d, w.gradient_m, x.m, x.q.dim, x.m, count, [&] { next_q(), next_dy(); });
        }
        // Likewise seen from the frame before the segment.
        if (a.base != 1 && start == at.first && stop > start) scale(part_z, x.d, a.base);
        if (!write) return;
        slopes[2 * (head * x.segments + at.segment) + 1] += total;
        zero_rows(to_k, b, h, stop, at.end);
        zero_rows(to_v, b, h, stop, at.end);
      }};
  x.run({ahead, back});

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

}  // namespace
}  // namespace asr::causal

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("causal_linear_attention_backward", TORCH_BOX(&asr::causal::backward));
}
