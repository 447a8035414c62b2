// What every op takes from torch: memory, and the device of its inputs with its current stream.
#pragma once

#include <initializer_list>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "../cpu/rows.h"
#include "problem.h"

namespace asr::cuda {

inline Rows rows(const Tensor& t) {
  return {t.data_ptr(), {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}};
}

inline Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type = ScalarType::Float) {
  return torch::stable::new_empty(like, sizes, type);
}

// Kernels cannot take more blocks than this in one direction, nor columns beyond the other.
inline void check_blocks(int64_t blocks, const Batch& p) {
  STD_TORCH_CHECK(
      blocks < (int64_t{1} << 31) && p.dim < 8192 && p.width < 8192, "more blocks than a GPU can take");
}

// The device of a tensor, and its current stream, while this lives.
class Device {
 public:
  explicit Device(const Tensor& q) : index_(q.get_device_index()), guard_(index_), type_(q.scalar_type()) {
    STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream_) == 0, "the GPU has no current stream");
  }

  // All tensors must lie here.
  void here(std::initializer_list<const Tensor*> tensors) const {
    for (const Tensor* t : tensors)
      STD_TORCH_CHECK(t->is_cuda() && t->get_device_index() == index_, "tensors lie on different devices");
  }

  // Calls the one of float32, bfloat16 and float16 that is q's dtype.
  template <typename Problem, typename Arguments>
  void run(
      const Problem& problem, const Arguments& arguments, void (*f)(const Problem&, const Arguments&, void*),
      void (*b)(const Problem&, const Arguments&, void*), void (*h)(const Problem&, const Arguments&, void*)) const {
    const auto op = type_ == ScalarType::Float ? f : type_ == ScalarType::BFloat16 ? b : h;
    op(problem, arguments, stream_);
    const char* failure = last_error();
    STD_TORCH_CHECK(failure == nullptr, "a CUDA kernel could not be started: ", failure);
  }

 private:
  int32_t index_;
  torch::stable::accelerator::DeviceGuard guard_;
  ScalarType type_;
  void* stream_ = nullptr;
};

}  // namespace asr::cuda
