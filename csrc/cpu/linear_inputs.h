// What the linear attention ops share: their inputs as raw memory, and features of rows.
#pragma once

#include <array>
#include <string>

#include "feature_maps.h"

namespace asr {

// Frames summed from zero before they are added to what came before: a row gives the same bits alone and in any batch,
// with one thread and with many; long enough that adding up segments costs nothing.
constexpr int64_t kSegment = 512;

constexpr int64_t kMostRows = 64;  // that one tile or chunk has
constexpr std::array<float, kMostRows> kOnes = [] {
  std::array<float, kMostRows> ones{};
  ones.fill(1);
  return ones;
}();

struct LinearInputs {
  Rows q, k, v;
  const int64_t* lengths;
  const float* table;  // (time, dim) or null
  FeatureMap map;
  float eps;
  int64_t heads, segments, d, m;  // heads: of all rows; d, m: padded widths

  LinearInputs(
      const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths, const std::optional<Tensor>& table,
      const std::string& map, double eps)
      : q(q), k(k), v(v),
        lengths(lengths.const_data_ptr<int64_t>()),
        table(table ? table->const_data_ptr<float>() : nullptr),
        map(feature_map(map)),
        eps(static_cast<float>(eps)),
        heads(this->q.batch * this->q.heads),
        segments(std::max<int64_t>(1, (this->q.time + kSegment - 1) / kSegment)),
        d(padded(this->q.dim)), m(padded(this->v.dim)) {
    check_rows(q, k, v, lengths);
    check_table(table, q);
  }

  // The gradient of the output, which may lie in memory otherwise than v.
  Rows gradient(const Tensor& dout) const {
    const Rows dy(dout);
    STD_TORCH_CHECK(
        dy.batch == v.batch && dy.time == v.time && dy.heads == v.heads && dy.dim == v.dim && dy.type == v.type,
        "the gradient of the output differs from v in shape or dtype");
    return dy;
  }

  int64_t length(int64_t b) const { return std::clamp<int64_t>(lengths[b], 0, q.time); }

  // φ of rows start … start + count into `phi`; → what the numerator uses: phi itself, or `turned`.
  const float* features(const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, float* phi, float* turned,
                        bool next = true) const {
    load_features(map, x, b, h, start, count, phi, d, next);
    if (!table) return phi;
    turn(turned, phi, table + start * x.dim, count, x.dim, d);
    return turned;
  }

  // 1 / (φ_t·z_t + eps) of every row; rows of z are `step` apart. The divisions by themselves, so that they are vectors.
  void inverse(float* to, const float* phi, const float* z, int64_t step, int64_t count) const {
    for (int64_t t = 0; t < count; ++t) to[t] = dot(phi + t * d, z + t * step, d) + eps;
    for (int64_t t = 0; t < count; ++t) to[t] = 1 / to[t];
  }

  // A gradient for the numerator's features → for φ.
  void turn_back(float* gradient, float* scratch, int64_t start, int64_t count) const {
    if (!table) return;
    std::copy_n(gradient, count * d, scratch);
    turn(gradient, scratch, table + start * q.dim, count, q.dim, d, -1);
  }
};

}  // namespace asr
