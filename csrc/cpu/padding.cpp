// Padding set to zero, alone and behind a gate: each in one pass over memory.

#include <algorithm>
#include <cstring>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "activations.h"

namespace asr {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 1 << 16;  // bytes that are worth a thread

void check(const Tensor& x, const Tensor& lengths) {
  STD_TORCH_CHECK(x.dim() >= 2 && x.is_contiguous(), "x: (batch, time, ...), contiguous");
  STD_TORCH_CHECK(
      lengths.dim() == 1 && lengths.size(0) == x.size(0) && lengths.is_contiguous() &&
          lengths.scalar_type() == ScalarType::Long,
      "lengths: (batch,) int64");
}

// (batch, time, …) with zeros from every row's length on.
Tensor zero_padding(Tensor x, Tensor lengths) {
  check(x, lengths);
  Tensor out = torch::stable::empty_like(x);
  const int64_t batch = x.size(0), time = x.size(1);
  if (x.numel() == 0) return out;
  const int64_t frame = x.numel() / (batch * time) * static_cast<int64_t>(x.element_size());  // bytes
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const int64_t* real = lengths.const_data_ptr<int64_t>();
  torch::stable::parallel_for(0, batch, std::max<int64_t>(1, kGrain / (frame * time)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t start = b * time * frame, size = std::clamp<int64_t>(real[b], 0, time) * frame;
      std::memcpy(to + start, from + start, size);
      std::memset(to + start + size, 0, time * frame - size);
    }
  });
  return out;
}

// f(a frame, whether it is real) of (batch, time, …).
template <typename F>
void each_frame(const Tensor& x, const Tensor& lengths, int64_t width, const F& f) {
  const int64_t time = x.size(1), *real = lengths.const_data_ptr<int64_t>();
  torch::stable::parallel_for(
      0, x.size(0) * time, std::max<int64_t>(1, kGrain / (4 * width + 1)), [&](int64_t begin, int64_t end) {
        for (int64_t frame = begin; frame < end; ++frame) f(frame, frame % time < real[frame / time]);
      });
}

// Calls f(i, n) for vectors that cover `width` floats, n of them from i on.
template <typename F>
void vectors(int64_t width, const F& f) {
  int64_t i = 0;
  for (; i + kWidth <= width; i += kWidth) f(i, kWidth);
  if (i < width) f(i, width - i);
}

inline vec load(const float* p, int64_t n) {
  if (n == kWidth) return asr::load(p);
  vec x{};
  std::memcpy(&x, p, n * sizeof(float));
  return x;
}

inline void store(float* p, vec x, int64_t n) {
  if (n == kWidth) asr::store(p, x);
  else std::memcpy(p, &x, n * sizeof(float));
}

int64_t half_width(const Tensor& x, const Tensor& lengths) {
  check(x, lengths);
  STD_TORCH_CHECK(
      x.dim() == 3 && x.size(2) % 2 == 0 && x.scalar_type() == ScalarType::Float,
      "x: (batch, time, an even number), float32");
  return x.size(2) / 2;
}

// (batch, time, 2 · width) → (batch, time, width): a ⊙ σ(b), and zeros from every row's length on.
Tensor gate(Tensor x, Tensor lengths) {
  const int64_t width = half_width(x, lengths);
  Tensor out = torch::stable::new_empty(x, {x.size(0), x.size(1), width});
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  each_frame(x, lengths, width, [&](int64_t frame, bool real) {
    const float *a = from + 2 * frame * width, *b = a + width;
    float* y = to + frame * width;
    if (!real) return static_cast<void>(std::fill_n(y, width, 0.0f));
    vectors(width, [&](int64_t i, int64_t n) { store(y + i, load(a + i, n) * sigmoid(load(b + i, n)), n); });
  });
  return out;
}

Tensor gate_backward(Tensor dout, Tensor x, Tensor lengths) {
  const int64_t width = half_width(x, lengths);
  STD_TORCH_CHECK(
      dout.is_contiguous() && dout.scalar_type() == ScalarType::Float && 2 * dout.numel() == x.numel(),
      "the gradient of the output: contiguous float32 of its shape");
  Tensor dx = torch::stable::empty_like(x);
  const float *from = x.const_data_ptr<float>(), *dy_all = dout.const_data_ptr<float>();
  float* to = dx.mutable_data_ptr<float>();
  each_frame(x, lengths, width, [&](int64_t frame, bool real) {
    const float *a = from + 2 * frame * width, *b = a + width, *dy = dy_all + frame * width;
    float *da = to + 2 * frame * width, *db = da + width;
    if (!real) return static_cast<void>(std::fill_n(da, 2 * width, 0.0f));
    vectors(width, [&](int64_t i, int64_t n) {
      const vec s = sigmoid(load(b + i, n)), g = load(dy + i, n) * s;
      store(da + i, g, n), store(db + i, g * load(a + i, n) * (1.0f - s), n);
    });
  });
  return dx;
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("zero_padding", TORCH_BOX(&asr::zero_padding));
  m.impl("gate", TORCH_BOX(&asr::gate));
  m.impl("gate_backward", TORCH_BOX(&asr::gate_backward));
}
