// Depth-wise convolution over time of (batch, time, dim), without the transposes that a general convolution wants:
//
//     y_t = b + Σ_k w_k ⊙ x_{t + k - left}        x is 0 before its first and after its last frame
//
// Frames are rows of contiguous channels; channels are worked on in vectors, a rest of them one by one.

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include "vec.h"

namespace asr::depthwise {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kFrames = 64;         // of a tile: its rows of a few channels stay in the first cache
constexpr int64_t kBlock = 2 * kWidth;  // channels worked on at once

struct Problem {
  int64_t batch, frames, dim, kernel, left, out;

  Problem(const Tensor& x, const Tensor& weight, int64_t left, int64_t right)
      : batch(x.size(0)), frames(x.size(1)), dim(x.size(2)), kernel(weight.size(1)), left(left),
        out(frames + left + right - kernel + 1) {
    STD_TORCH_CHECK(x.dim() == 3 && weight.dim() == 2, "x: (batch, time, dim), weight: (dim, kernel)");
    for (const Tensor& t : {x, weight})
      STD_TORCH_CHECK(t.is_contiguous() && t.scalar_type() == ScalarType::Float, "x, weight: contiguous float32");
    STD_TORCH_CHECK(weight.size(0) == dim, "weight: (dim, kernel)");
    STD_TORCH_CHECK(0 <= left && left < kernel && 0 <= right && right < kernel, "left, right: from 0, below the kernel's frames");
    STD_TORCH_CHECK(out >= 0, "x has fewer frames, padded, than the kernel");
  }

  // Taps k of frame t that meet a frame of x, [first, second), where x has `frames` and starts `left` after the padding.
  static std::pair<int64_t, int64_t> taps(int64_t t, int64_t kernel, int64_t left, int64_t frames) {
    return {std::max<int64_t>(0, left - t), std::min(kernel, frames + left - t)};
  }
};

// (dim, kernel) → (kernel, dim), backwards in time if asked.
std::vector<float> by_tap(const Tensor& weight, bool backwards) {
  const int64_t dim = weight.size(0), kernel = weight.size(1);
  const float* w = weight.const_data_ptr<float>();
  std::vector<float> rows(dim * kernel);
  for (int64_t c = 0; c < dim; ++c)
    for (int64_t k = 0; k < kernel; ++k) rows[(backwards ? kernel - 1 - k : k) * dim + c] = w[c * kernel + k];
  return rows;
}

// `to` (batch, out, dim) from `from` (batch, frames, dim) and rows of weights by tap.
void convolve(
    float* to, const float* from, const float* weights, const float* bias, int64_t batch, int64_t out, int64_t frames,
    int64_t dim, int64_t kernel, int64_t left) {
  torch::stable::parallel_for(0, batch * out, kFrames, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t t = row % out;
      const auto [first, last] = Problem::taps(t, kernel, left, frames);
      const float* x = from + ((row / out) * frames + t - left) * dim;
      float* y = to + row * dim;
      int64_t c = 0;
      for (; c + kBlock <= dim; c += kBlock) {
        vec a = bias ? load(bias + c) : vec{}, b = bias ? load(bias + c + kWidth) : vec{};
        for (int64_t k = first; k < last; ++k) {
          a += load(weights + k * dim + c) * load(x + k * dim + c);
          b += load(weights + k * dim + c + kWidth) * load(x + k * dim + c + kWidth);
        }
        store(y + c, a), store(y + c + kWidth, b);
      }
      for (; c < dim; ++c) {
        float sum = bias ? bias[c] : 0;
        for (int64_t k = first; k < last; ++k) sum += weights[k * dim + c] * x[k * dim + c];
        y[c] = sum;
      }
    }
  });
}

Tensor forward(Tensor x, Tensor weight, std::optional<Tensor> bias, int64_t left, int64_t right) {
  const Problem p(x, weight, left, right);
  Tensor out = torch::stable::new_empty(x, {p.batch, p.out, p.dim});
  convolve(
      out.mutable_data_ptr<float>(), x.const_data_ptr<float>(), by_tap(weight, false).data(),
      bias ? bias->const_data_ptr<float>() : nullptr, p.batch, p.out, p.frames, p.dim, p.kernel, left);
  return out;
}

// dw_k = Σ_t dy_t ⊙ x_{t + k - left} of kBlock channels from c on, and db = Σ_t dy_t.
void block_gradient(const Problem& p, const float* dy, const float* x, int64_t c, float* dw, float* db) {
  std::vector<float> sums(p.kernel * kBlock);
  vec of_bias[2] = {};
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t start = 0; start < p.out; start += kFrames) {
      const int64_t stop = std::min(start + kFrames, p.out);
      const float* row = dy + b * p.out * p.dim + c;
      for (int64_t t = start; t < stop; ++t)
        for (int i = 0; i < 2; ++i) of_bias[i] += load(row + t * p.dim + i * kWidth);
      for (int64_t k = 0; k < p.kernel; ++k) {
        const float* seen = x + (b * p.frames + k - p.left) * p.dim + c;
        const int64_t end = std::min(stop, p.frames + p.left - k);
        int64_t t = std::max(start, p.left - k);
        vec a[4] = {load(&sums[k * kBlock]), load(&sums[k * kBlock + kWidth])};
        for (; t + 2 <= end; t += 2)
          for (int i = 0; i < 4; ++i) {
            const int64_t at = (t + i / 2) * p.dim + i % 2 * kWidth;
            a[i] += load(row + at) * load(seen + at);
          }
        if (t < end)
          for (int i = 0; i < 2; ++i) a[i] += load(row + t * p.dim + i * kWidth) * load(seen + t * p.dim + i * kWidth);
        for (int i = 0; i < 2; ++i) store(&sums[k * kBlock + i * kWidth], a[i] + a[i + 2]);
      }
    }
  for (int64_t k = 0; k < p.kernel; ++k)
    for (int64_t i = 0; i < kBlock; ++i) dw[(c + i) * p.kernel + k] = sums[k * kBlock + i];
  for (int i = 0; i < 2; ++i) store(db + c + i * kWidth, of_bias[i]);
}

void channel_gradient(const Problem& p, const float* dy, const float* x, int64_t c, float* dw, float* db) {
  db[c] = 0;
  for (int64_t row = 0; row < p.batch * p.out; ++row) db[c] += dy[row * p.dim + c];
  for (int64_t k = 0; k < p.kernel; ++k) {
    float sum = 0;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t t = std::max<int64_t>(0, p.left - k); t < std::min(p.out, p.frames + p.left - k); ++t)
        sum += dy[(b * p.out + t) * p.dim + c] * x[(b * p.frames + t + k - p.left) * p.dim + c];
    dw[c * p.kernel + k] = sum;
  }
}

std::tuple<Tensor, Tensor, Tensor> backward(Tensor dout, Tensor x, Tensor weight, int64_t left, int64_t right) {
  const Problem p(x, weight, left, right);
  STD_TORCH_CHECK(
      dout.is_contiguous() && dout.scalar_type() == ScalarType::Float && dout.dim() == 3 && dout.size(0) == p.batch &&
          dout.size(1) == p.out && dout.size(2) == p.dim,
      "the gradient of the output: contiguous float32 of its shape");
  Tensor dx = torch::stable::empty_like(x), dw = torch::stable::empty_like(weight);
  Tensor db = torch::stable::new_empty(weight, {p.dim});
  const float *dy = dout.const_data_ptr<float>(), *seen = x.const_data_ptr<float>();
  convolve(
      dx.mutable_data_ptr<float>(), dy, by_tap(weight, true).data(), nullptr, p.batch, p.frames, p.out, p.dim, p.kernel,
      p.kernel - 1 - left);
  float *to_w = dw.mutable_data_ptr<float>(), *to_b = db.mutable_data_ptr<float>();
  const int64_t blocks = p.dim / kBlock;
  torch::stable::parallel_for(0, blocks + p.dim % kBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (i < blocks) block_gradient(p, dy, seen, i * kBlock, to_w, to_b);
      else channel_gradient(p, dy, seen, blocks * kBlock + i - blocks, to_w, to_b);
  });
  return {dx, dw, db};
}

}  // namespace
}  // namespace asr::depthwise

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("depthwise_convolution", TORCH_BOX(&asr::depthwise::forward));
  m.impl("depthwise_convolution_backward", TORCH_BOX(&asr::depthwise::backward));
}
