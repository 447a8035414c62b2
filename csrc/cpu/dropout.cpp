// Dropout with what stands beside it, each in one pass over memory: after an activation, or before a sum with a residual.

#include <algorithm>
#include <optional>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "activations.h"
#include "philox.h"

namespace asr {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 256;  // groups that are worth a thread

const float* floats(const Tensor& x) {
  STD_TORCH_CHECK(x.is_contiguous() && x.scalar_type() == ScalarType::Float, "dropout: contiguous float32");
  return x.const_data_ptr<float>();
}

// to = f(keep, x, y) with `keep` weight · 256 / (256 - dropped) or 0; y may be null.
template <typename F>
void each(
    float* to, const float* x, const float* y, int64_t count, const Tensor& seed, int64_t dropped, double weight, const F& f) {
  STD_TORCH_CHECK(seed.numel() == 1 && seed.scalar_type() == ScalarType::Long, "seed: one int64");
  STD_TORCH_CHECK(0 <= dropped && dropped < 256, "dropped: 0 to 255");
  const auto key = static_cast<uint64_t>(*seed.const_data_ptr<int64_t>());
  const auto kept = static_cast<float>(weight * 256.0 / static_cast<double>(256 - dropped));
  torch::stable::parallel_for(0, (count + kDrawn - 1) / kDrawn, kGrain, [&](int64_t begin, int64_t end) {
    alignas(64) float keep[kDrawn], last[3][kDrawn];
    for (int64_t group = begin; group < end; ++group) {
      draw(keep, key, group, static_cast<int>(dropped), kept);
      const int64_t at = group * kDrawn, n = std::min(kDrawn, count - at);
      const float *a = x + at, *b = y ? y + at : x + at;
      float* out = to + at;
      if (n < kDrawn) {
        std::copy_n(a, n, last[0]), std::copy_n(b, n, last[1]);
        std::fill_n(last[0] + n, kDrawn - n, 0.0f), std::fill_n(last[1] + n, kDrawn - n, 0.0f);
        a = last[0], b = last[1], out = last[2];
      }
      for (int64_t i = 0; i < kDrawn; i += kWidth) store(out + i, f(load(keep + i), load(a + i), load(b + i)));
      if (n < kDrawn) std::copy_n(out, n, to + at);
    }
  });
}

Tensor dropout(Tensor x, Tensor seed, int64_t dropped, std::string activation) {
  Tensor out = torch::stable::empty_like(x);
  with_activation(activation, [&](auto act) {
    each(out.mutable_data_ptr<float>(), floats(x), nullptr, x.numel(), seed, dropped, 1, [](vec keep, vec a, vec) {
      return decltype(act)::value(a) * keep;
    });
  });
  return out;
}

// x is needed for an activation's slope only.
Tensor backward(Tensor dout, std::optional<Tensor> x, Tensor seed, int64_t dropped, double weight, std::string activation) {
  STD_TORCH_CHECK(x ? x->numel() == dout.numel() : activation == "identity", "x: what the activation was given");
  Tensor dx = torch::stable::empty_like(dout);
  with_activation(activation, [&](auto act) {
    each(
        dx.mutable_data_ptr<float>(), floats(dout), x ? floats(*x) : nullptr, dout.numel(), seed, dropped, weight,
        [](vec keep, vec a, vec b) { return a * keep * decltype(act)::slope(b); });
  });
  return dx;
}

Tensor add_dropout(Tensor x, Tensor y, Tensor seed, int64_t dropped, double weight) {
  STD_TORCH_CHECK(x.numel() == y.numel(), "x and y differ in shape");
  Tensor out = torch::stable::empty_like(x);
  each(
      out.mutable_data_ptr<float>(), floats(x), floats(y), x.numel(), seed, dropped, weight,
      [](vec keep, vec a, vec b) { return a + b * keep; });
  return out;
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("dropout", TORCH_BOX(&asr::dropout));
  m.impl("dropout_backward", TORCH_BOX(&asr::backward));
  m.impl("add_dropout", TORCH_BOX(&asr::add_dropout));
}
