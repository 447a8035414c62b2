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

constexpr int64_t kTile = 32;  // frames at once: theirs, those to come and the sums they meet just fit a first-level cache
static_assert(kTile <= kMostRows);

// A segment of one row: frames start … stop are real, stop … end padding; heads first … last of it.
struct Piece {
  int64_t b, segment, first, last, start, stop, end;
};

struct Problem : LinearInputs {
  int64_t state = q.dim * m + d;  // floats of one head's S and z

  using LinearInputs::LinearInputs;

  // Where the sums of a segment of one head stand among those of all.
  int64_t at(int64_t b, int64_t h, int64_t segment) const { return ((b * q.heads + h) * segments + segment) * state; }

  // Calls f(piece) for every segment of every row. Its heads lie side by side in memory, so that all of them are one piece
  // unless that leaves threads without work.
  template <typename F>
  void each_piece(const F& f) const {
    const bool apart = q.batch * segments < 2 * torch::stable::get_num_threads();
    const int64_t groups = apart ? q.heads : std::min<int64_t>(q.heads, 1), together = apart ? 1 : q.heads;
    torch::stable::parallel_for(0, q.batch * segments * groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t first = unit % groups * together, segment = unit / groups % segments, b = unit / groups / segments;
        const int64_t start = segment * kSegment, stop = std::min(start + kSegment, q.time);
        f(Piece{b, segment, first, first + together, start, std::clamp(length(b), start, stop), stop});
      }
    });
  }

  // Calls f(t, count, h) for tiles of a piece's real frames and each of its heads.
  template <typename F>
  void each_tile(const Piece& piece, const F& f) const {
    for (int64_t t = piece.start; t < piece.stop; t += kTile)
      for (int64_t h = piece.first; h < piece.last; ++h) f(t, std::min(kTile, piece.stop - t), h);
  }

  // The rows of x that are needed after a tile: of the next head or, after the last, the next frames.
  Ahead ahead(const Rows& x, const Piece& piece, int64_t t, int64_t h, int64_t turns) const {
    const bool last = h + 1 == piece.last;
    return Ahead(x, piece.b, last ? piece.first : h + 1, last ? t + kTile : t, kTile, turns);
  }

  void zero_padding(const Rows& x, const Piece& piece) const {
    for (int64_t h = piece.first; h < piece.last; ++h) zero_rows(x, piece.b, h, piece.stop, piece.end);
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

  p.each_piece([&](const Piece& piece) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), values(kTile * p.m);
    for (int64_t h = piece.first; h < piece.last; ++h) clear(sums + p.at(piece.b, h, piece.segment), p.state);
    p.each_tile(piece, [&](int64_t t, int64_t count, int64_t h) {
      float* s = sums + p.at(piece.b, h, piece.segment);
      const float* f = p.features(p.k, piece.b, h, t, count, phi, turned, false);
      const Matrix x = view_rows(p.v, piece.b, h, t, count, values, p.m);
      const int64_t turns = tiles(p.q.dim, p.m);
      Ahead next_k = p.ahead(p.k, piece, t, h, turns), next_v = p.ahead(p.v, piece, t, h, turns);
      gemm(s, p.m, f, 1, p.d, x.data, x.ld, p.q.dim, p.m, count, [&] { next_k(), next_v(); });
      add_rows(s + p.q.dim * p.m, phi, count, p.d, kOnes.data());
    });
  });
  p.fold(sums);
  for (int64_t head = 0; head < p.heads; ++head) {
    const float* s = sums + head * p.segments * p.state;
    store_matrix(kv.mutable_data_ptr<float>() + head * p.q.dim * p.v.dim, s, p.q.dim, p.v.dim, p.m);
    std::copy_n(s + p.q.dim * p.m, p.q.dim, ksum.mutable_data_ptr<float>() + head * p.q.dim);
  }

  p.each_piece([&](const Piece& piece) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), result(kTile * p.m);
    p.each_tile(piece, [&](int64_t t, int64_t count, int64_t h) {
      const float* s = sums + p.at(piece.b, h, 0);
      const float* f = p.features(p.q, piece.b, h, t, count, phi, turned, false);
      const int64_t turns = tiles(count, p.m);
      Ahead next_q = p.ahead(p.q, piece, t, h, turns), next_y = p.ahead(y, piece, t, h, turns);
      product(result, p.m, f, p.d, 1, s, p.m, count, p.m, p.q.dim, [&] { next_q(), next_y(); });
      float inverse[kTile];
      p.inverse(inverse, phi, s + p.q.dim * p.m, 0, count);
      store_rows(
          y, piece.b, h, t, count, result, p.m, [&](vec sum, int64_t i, int64_t) { return sum * inverse[i]; });
    });
    p.zero_padding(y, piece);
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
  const int64_t square = p.m * p.d;

  p.each_piece([&](const Piece& piece) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), numerator(kTile * p.m), gradient(kTile * p.d), s(square);
    const Buffer states((piece.last - piece.first) * (square + p.d));  // of each head: Sᵀ and z
    for (int64_t h = piece.first; h < piece.last; ++h) {
      const int64_t head = piece.b * p.q.heads + h;
      float* across = states + (h - piece.first) * (square + p.d);
      load_matrix(s, s_all + head * p.q.dim * p.v.dim, p.q.dim, p.v.dim, p.m);
      clear(s + p.q.dim * p.m, (p.d - p.q.dim) * p.m);
      transpose(across, p.d, s, p.m, p.d, p.m);
      load_matrix(across + square, z_all + head * p.q.dim, 1, p.q.dim, p.d);
      clear(sums + p.at(piece.b, h, piece.segment), p.state);
    }
    p.each_tile(piece, [&](int64_t t, int64_t count, int64_t h) {
      const float* across = states + (h - piece.first) * (square + p.d);
      const float* z = across + square;
      float* ds = sums + p.at(piece.b, h, piece.segment);
      float* dz = ds + p.q.dim * p.m;
      const float* f = p.features(p.q, piece.b, h, t, count, phi, turned, false);
      float part[kTile];
      p.inverse(part, phi, z, 0, count);
      load_rows(dy, piece.b, h, t, count, numerator, p.m, [&](vec x, int64_t i) { return x * part[i]; }, false);
      const int64_t turns = tiles(count, p.d);
      Ahead next_q = p.ahead(p.q, piece, t, h, turns), next_dy = p.ahead(dy, piece, t, h, turns);
      product(gradient, p.d, numerator, p.m, 1, across, p.d, count, p.d, p.v.dim, [&] { next_q(), next_dy(); });
      Ahead next_dq = p.ahead(to_q, piece, t, h, tiles(p.q.dim, p.m));
      gemm(ds, p.m, f, 1, p.d, numerator, p.m, p.q.dim, p.m, count, next_dq);
      for (int64_t i = 0; i < count; ++i) part[i] *= -dot(f + i * p.d, gradient + i * p.d, p.d);
      p.turn_back(gradient, turned, t, count);
      add_rows(dz, phi, count, p.d, part);
      store_gradient(p.map, to_q, piece.b, h, t, count, gradient, phi, p.d, part, z);
    });
    p.zero_padding(to_q, piece);
  });
  p.fold(sums);

  p.each_piece([&](const Piece& piece) {
    const Buffer phi(kTile * p.d), turned(kTile * p.d), values(kTile * p.m), gradient(kTile * p.d), s(square);
    const Buffer states((piece.last - piece.first) * square);
    for (int64_t h = piece.first; h < piece.last; ++h) {
      std::copy_n(sums + p.at(piece.b, h, 0), p.q.dim * p.m, static_cast<float*>(s));
      clear(s + p.q.dim * p.m, (p.d - p.q.dim) * p.m);
      transpose(states + (h - piece.first) * square, p.d, s, p.m, p.d, p.m);
    }
    p.each_tile(piece, [&](int64_t t, int64_t count, int64_t h) {
      const float* ds = sums + p.at(piece.b, h, 0);
      const float* f = p.features(p.k, piece.b, h, t, count, phi, turned, false);
      const Matrix x = view_rows(p.v, piece.b, h, t, count, values, p.m);
      const float* across = states + (h - piece.first) * square;
      int64_t turns = tiles(count, p.d);
      Ahead next_k = p.ahead(p.k, piece, t, h, turns), next_v = p.ahead(p.v, piece, t, h, turns);
      product(gradient, p.d, x.data, x.ld, 1, across, p.d, count, p.d, p.v.dim, [&] { next_k(), next_v(); });
      turns = tiles(count, p.m);
      Ahead next_dk = p.ahead(to_k, piece, t, h, turns), next_dv = p.ahead(to_v, piece, t, h, turns);
      product(values, p.m, f, p.d, 1, ds, p.m, count, p.m, p.q.dim, [&] { next_dk(), next_dv(); });
      store_rows(to_v, piece.b, h, t, count, values, p.m);
      p.turn_back(gradient, turned, t, count);
      store_gradient(
          p.map, to_k, piece.b, h, t, count, gradient, phi, p.d, kOnes.data(), ds + p.q.dim * p.m);
    });
    p.zero_padding(to_k, piece);
    p.zero_padding(to_v, piece);
  });
  return {dq, dk, dv};
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("linear_attention", TORCH_BOX(&asr::forward));
  m.impl("linear_attention_backward", TORCH_BOX(&asr::backward));
}
