// Feature maps of linear attention on rows in buffers, rotary positions, and both backwards.
#pragma once

#include <string_view>

#include <torch/headeronly/util/Exception.h>

#include "rows.h"

namespace asr {

enum class FeatureMap { kElu, kRelu, kIdentity };

inline FeatureMap feature_map(std::string_view name) {
  if (name == "elu") return FeatureMap::kElu;
  if (name == "relu") return FeatureMap::kRelu;
  STD_TORCH_CHECK(name == "identity", "feature_map: elu, relu or identity");
  return FeatureMap::kIdentity;
}

// x → φ(x) in place for `count` rows of `dim` floats, ld apart; the columns from dim to ld stay 0.
// elu: exp(min(x, 0)) + max(x, 0), which is elu(x) + 1 without the cancellation that makes it 0 below -17.
inline void apply(FeatureMap map, float* x, int64_t count, int64_t dim, int64_t ld) {
  if (map == FeatureMap::kIdentity) return;
  for (int64_t t = 0; t < count; ++t, x += ld) {
    for (int64_t d = 0; d < ld; d += kWidth) {
      const vec value = load(x + d);
      const vec positive = max(vec{}, value);  // in this order NaN stays NaN
      store(x + d, map == FeatureMap::kElu ? exp(min(vec{}, value)) + positive : positive);
    }
    for (int64_t d = dim; d < ld; ++d) x[d] = 0;
  }
}

// gradient *= φ'(x), from φ(x): elu's slope is φ below 1 and 1 above; relu's is 0 at 0.
inline void apply_slope(FeatureMap map, float* gradient, const float* phi, int64_t count, int64_t ld) {
  if (map == FeatureMap::kIdentity) return;
  for (int64_t i = 0; i < count * ld; i += kWidth) {
    const vec f = load(phi + i);
    store(gradient + i, load(gradient + i) * (map == FeatureMap::kElu ? min(splat(1), f) : (f > vec{} ? splat(1) : vec{})));
  }
}

// y = x with each pair (x_i, x_{i + dim/2}) turned by the angle of its frame; direction -1 turns back.
// `table` holds for every frame the dim/2 cosines, then the dim/2 sines. Su et al., "RoFormer", 2021, equation 34.
inline void turn(
    float* y, const float* x, const float* table, int64_t count, int64_t dim, int64_t ld, float direction = 1) {
  const int64_t half = dim / 2;
  for (int64_t t = 0; t < count; ++t, x += ld, y += ld, table += dim) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half], cosine = table[i], sine = direction * table[i + half];
      y[i] = a * cosine - b * sine;
      y[i + half] = a * sine + b * cosine;
    }
    for (int64_t d = dim; d < ld; ++d) y[d] = 0;
  }
}

inline float dot(const float* x, const float* y, int64_t n) {
  vec total{};
  for (int64_t i = 0; i < n; i += kWidth) total += load(x + i) * load(y + i);
  return sum(total);
}

// y += a x
inline void add(float* y, const float* x, int64_t n, float a = 1) {
  for (int64_t i = 0; i < n; i += kWidth) store(y + i, load(y + i) + a * load(x + i));
}

inline void scale(float* x, int64_t n, float a) {
  for (int64_t i = 0; i < n; i += kWidth) store(x + i, load(x + i) * a);
}

inline void clear(float* x, int64_t n) { std::fill_n(x, n, 0.0f); }

// A state (dim x width, contiguous) to and from a padded buffer.
inline void load_matrix(float* to, const float* from, int64_t rows, int64_t columns, int64_t ld) {
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(from + i * columns, columns, to + i * ld);
    std::fill(to + i * ld + columns, to + (i + 1) * ld, 0.0f);
  }
}

inline void store_matrix(float* to, const float* from, int64_t rows, int64_t columns, int64_t ld) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * ld, columns, to + i * columns);
}

}  // namespace asr
