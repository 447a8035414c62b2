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

// exp(min(x, 0)) + max(x, 0), which is elu(x) + 1 without the cancellation that makes it 0 below -17. NaN stays NaN.
struct Elu {
  vec operator()(vec x, int64_t) const { return exp_within(max(splat(-87.3f), min(vec{}, x))) + max(vec{}, x); }
};

struct Relu {
  vec operator()(vec x, int64_t) const { return max(vec{}, x); }
};

// φ of rows start … start + count of one head; the columns from dim to ld are 0.
inline void load_features(
    FeatureMap map, const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, float* to, int64_t ld,
    bool next = true) {
  if (map == FeatureMap::kElu) load_rows(x, b, h, start, count, to, ld, Elu{}, next);
  else if (map == FeatureMap::kRelu) load_rows(x, b, h, start, count, to, ld, Relu{}, next);
  else load_rows(x, b, h, start, count, to, ld, Unchanged{}, next);
}

// Row t of x becomes g · φ'(x) with g = gradient + weight[t] z, where z is one row, or a row for every t that step apart.
// elu's slope is φ below 1 and 1 above; relu's is 0 at 0.
inline void store_gradient(
    FeatureMap map, const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, const float* gradient,
    const float* phi, int64_t ld, const float* weight, const float* z, int64_t step = 0) {
  const auto sum = [=](vec g, int64_t t, int64_t d) { return g + weight[t] * load(z + t * step + d); };
  const auto elu = [=](vec g, int64_t t, int64_t d) { return sum(g, t, d) * min(splat(1), load(phi + t * ld + d)); };
  const auto relu = [=](vec g, int64_t t, int64_t d) { return load(phi + t * ld + d) > vec{} ? sum(g, t, d) : vec{}; };
  if (map == FeatureMap::kElu) store_rows(x, b, h, start, count, gradient, ld, elu);
  else if (map == FeatureMap::kRelu) store_rows(x, b, h, start, count, gradient, ld, relu);
  else store_rows(x, b, h, start, count, gradient, ld, sum);
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

// x · (y + a z), sums of y and z first: they may cancel
inline float dot_of_sum(const float* x, const float* y, const float* z, float a, int64_t n) {
  vec total{};
  for (int64_t i = 0; i < n; i += kWidth) total += load(x + i) * (load(y + i) + a * load(z + i));
  return sum(total);
}

// y += a x
inline void add(float* y, const float* x, int64_t n, float a = 1) {
  for (int64_t i = 0; i < n; i += kWidth) store(y + i, load(y + i) + a * load(x + i));
}

// y += Σ_t weight[t] x_t over `count` rows of x, n apart, in order; V vectors side by side, as additions wait for each other.
template <int V>
inline void add_columns(float* y, const float* x, int64_t count, int64_t n, const float* weight) {
  vec total[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) total[v] = load(y + v * kWidth);
  for (int64_t t = 0; t < count; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) total[v] += weight[t] * load(x + t * n + v * kWidth);
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) store(y + v * kWidth, total[v]);
}

inline void add_rows(float* y, const float* x, int64_t count, int64_t n, const float* weight) {
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) add_columns<4>(y + i, x + i, count, n, weight);
  for (; i < n; i += kWidth) add_columns<1>(y + i, x + i, count, n, weight);
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
