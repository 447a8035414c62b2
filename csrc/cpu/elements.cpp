// What stands beside the ops in every block, each in one pass over memory: dropout, and padding set to zero.

#include <algorithm>
#include <cstring>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

namespace asr {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread

// A function of its own, so that the compiler knows that the memories are apart.
void keep(
    float* __restrict to, const float* __restrict from, const unsigned char* __restrict bytes, int64_t count, int least,
    float scale) {
  for (int64_t i = 0; i < count; ++i) {
    const int byte = bytes[i];
    to[i] = from[i] * (byte >= least ? scale : 0.0f);
  }
}

// x · 256 / (256 - dropped) where an element's byte of `draws` is at least `dropped`, else x · 0.
Tensor dropout(Tensor x, Tensor draws, int64_t dropped) {
  STD_TORCH_CHECK(x.is_contiguous() && x.scalar_type() == ScalarType::Float, "x: contiguous float32");
  STD_TORCH_CHECK(draws.is_contiguous() && draws.scalar_type() == ScalarType::Long, "draws: contiguous int64");
  STD_TORCH_CHECK(8 * draws.numel() >= x.numel(), "draws: a byte for every element of x");
  STD_TORCH_CHECK(0 < dropped && dropped < 256, "dropped: 1 to 255");
  Tensor out = torch::stable::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  const auto* bytes = reinterpret_cast<const unsigned char*>(draws.const_data_ptr<int64_t>());
  float* to = out.mutable_data_ptr<float>();
  const auto scale = static_cast<float>(256.0 / static_cast<double>(256 - dropped));
  torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    keep(to + begin, from + begin, bytes + begin, end - begin, static_cast<int>(dropped), scale);
  });
  return out;
}

// (batch, time, …) with zeros from every row's length on.
Tensor zero_padding(Tensor x, Tensor lengths) {
  STD_TORCH_CHECK(x.dim() >= 2 && x.is_contiguous(), "x: (batch, time, ...), contiguous");
  STD_TORCH_CHECK(
      lengths.dim() == 1 && lengths.size(0) == x.size(0) && lengths.is_contiguous() &&
          lengths.scalar_type() == ScalarType::Long,
      "lengths: (batch,) int64");
  Tensor out = torch::stable::empty_like(x);
  const int64_t batch = x.size(0), time = x.size(1);
  if (x.numel() == 0) return out;
  const int64_t frame = x.numel() / (batch * time) * static_cast<int64_t>(x.element_size());  // bytes
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const int64_t* real = lengths.const_data_ptr<int64_t>();
  torch::stable::parallel_for(0, batch, std::max<int64_t>(1, 4 * kGrain / (frame * time)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t start = b * time * frame, size = std::clamp<int64_t>(real[b], 0, time) * frame;
      std::memcpy(to + start, from + start, size);
      std::memset(to + start + size, 0, time * frame - size);
    }
  });
  return out;
}

}  // namespace
}  // namespace asr

STABLE_TORCH_LIBRARY_IMPL(asr, CPU, m) {
  m.impl("dropout", TORCH_BOX(&asr::dropout));
  m.impl("zero_padding", TORCH_BOX(&asr::zero_padding));
}
