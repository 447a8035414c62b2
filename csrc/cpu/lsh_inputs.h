// What LSH attention demands of its inputs, on the processor and on a GPU; the Python face says it in friendlier words.
#pragma once

#include <cstdint>

#include "rows.h"

namespace asr {

inline void check_lsh(
    const Tensor& qk, const Tensor& v, const Tensor& lengths, int64_t rounds, int64_t bucket_size) {
  check_rows(qk, qk, v, lengths);
  STD_TORCH_CHECK(bucket_size > 0 && rounds > 0, "bucket_size and rounds: at least 1");
  STD_TORCH_CHECK(qk.size(1) < INT32_MAX, "more frames than 32 bits count");
}

inline void check_lsh_forward(
    const Tensor& qk, const Tensor& v, const Tensor& lengths, const Tensor& rotation, int64_t bucket_size) {
  STD_TORCH_CHECK(
      rotation.dim() == 3 && qk.dim() == 4 && rotation.size(1) == qk.size(3), "rotation: (rounds, dim, columns)");
  const ScalarType type = rotation.scalar_type();
  STD_TORCH_CHECK(
      type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half,
      "rotation: float32, bfloat16 or float16");
  check_lsh(qk, v, lengths, rotation.size(0), bucket_size);
  STD_TORCH_CHECK(rotation.size(2) > 0 || qk.size(1) <= bucket_size, "rotation: no columns");
}

inline void check_lsh_backward(
    const Tensor& dout, const Tensor& qk, const Tensor& v, const Tensor& lengths, const Tensor& out, const Tensor& lse,
    const Tensor& order, int64_t bucket_size) {
  STD_TORCH_CHECK(
      order.dim() == 4 && order.scalar_type() == ScalarType::Int && order.is_contiguous(),
      "order: (batch, heads, rounds, time) int32, contiguous");
  check_lsh(qk, v, lengths, order.size(2), bucket_size);
  check_rows(v, v, dout, lengths);
  check_rows(v, v, out, lengths);
  STD_TORCH_CHECK(dout.size(3) == v.size(3) && out.size(3) == v.size(3), "out and its gradient: the shape of v");
  STD_TORCH_CHECK(
      order.size(0) == qk.size(0) && order.size(1) == qk.size(2) && order.size(3) == qk.size(1), "order: wrong shape");
  check_state(lse, {qk.size(0), qk.size(2), qk.size(1)});
}

}  // namespace asr
