// The CUDA side of LSH attention: checks and memory. Plain C++; the kernels are in the .cu files.

#include <cmath>
#include <tuple>

#include <torch/csrc/stable/library.h>

#include "../cpu/lsh_inputs.h"
#include "device.h"
#include "lsh_problem.h"

namespace asr::cuda::lsh {
namespace {

float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }
int32_t* integers(const Tensor& t) { return static_cast<int32_t*>(t.data_ptr()); }

// Checks what the processor's op does not have to.
Problem problem(
    const Device& device, const Tensor& qk, const Tensor& v, const Tensor& lengths, int64_t rounds, int64_t bucket_size,
    bool causal) {
  device.here({&qk, &v, &lengths});
  STD_TORCH_CHECK(qk.size(3) > 0 && v.size(3) > 0, "qk and v: at least one column");
  STD_TORCH_CHECK(qk.size(1) < kNever - kTile, "more frames than 32 bits count");  // the last tile ends behind them
  Problem p{};
  static_cast<Batch&>(p) = {qk.size(0), qk.size(1), qk.size(2), qk.size(3), v.size(3), lengths.const_data_ptr<int64_t>()};
  p.rounds = rounds;
  p.size = std::min(bucket_size, std::max<int64_t>(1, p.time));
  p.causal = causal;
  p.scale = 1 / std::sqrt(static_cast<float>(p.dim));
  check_blocks(p.rows() * p.rounds * p.tiles(kTile), p);
  return p;
}

std::tuple<Tensor, Tensor, Tensor> run_forward(
    Tensor qk, Tensor v, Tensor lengths, Tensor rotation, int64_t bucket_size, bool causal) {
  check_lsh_forward(qk, v, lengths, rotation, bucket_size);
  const Device device(qk);
  device.here({&rotation});
  const Problem p = problem(device, qk, v, lengths, rotation.size(0), bucket_size, causal);
  const Tensor turns = torch::stable::to(rotation, ScalarType::Float);
  Tensor out = torch::stable::new_empty(v, v.sizes());
  Tensor lse = empty(v, {p.batch, p.heads, p.time});
  Tensor order = empty(v, {p.batch, p.heads, p.rounds, p.time}, ScalarType::Int);
  const Tensor chunk = empty(v, {p.batch, p.heads, p.time, p.rounds}, ScalarType::Int);
  const Tensor norm = empty(v, {p.batch, p.heads, p.time});
  const int64_t frames = p.rounds > 1 ? p.rows() * p.time : 0;
  const Tensor y = empty(v, {frames, p.width}), states = empty(v, {2, frames, 2});
  const Forward f{rows(qk), rows(v), rows(out), floats(turns), {turns.stride(0), turns.stride(1), turns.stride(2)},
                  turns.size(2), floats(lse), integers(order), integers(chunk), floats(norm), floats(y),
                  {floats(states), floats(states) + 2 * frames}};
  device.run<Problem, Forward>(p, f, forward<Type::kFloat>, forward<Type::kBFloat16>, forward<Type::kHalf>);
  return {out, lse, order};
}

std::tuple<Tensor, Tensor> run_backward(
    Tensor dout, Tensor qk, Tensor v, Tensor lengths, Tensor out, Tensor lse, Tensor order, int64_t bucket_size,
    bool causal) {
  check_lsh_backward(dout, qk, v, lengths, out, lse, order, bucket_size);
  const Device device(qk);
  device.here({&dout, &out, &lse, &order});
  const Problem p = problem(device, qk, v, lengths, order.size(2), bucket_size, causal);
  Tensor dqk = torch::stable::new_empty(qk, qk.sizes()), dv = torch::stable::new_empty(v, v.sizes());
  const Tensor chunk = empty(v, {p.batch, p.heads, p.time, p.rounds}, ScalarType::Int);
  const Tensor norm = empty(v, {p.batch, p.heads, p.time}), inner = empty(v, {p.batch, p.heads, p.time});
  const int64_t frames = p.rounds > 1 ? p.rows() * p.time : 0;
  const Tensor dqk_sum = empty(v, {frames, p.dim}), dv_sum = empty(v, {frames, p.width}), along = empty(v, {frames});
  const Backward g{rows(qk), rows(v), rows(out), rows(dout), rows(dqk), rows(dv), floats(lse), integers(order),
                   integers(chunk), floats(norm), floats(inner), floats(dqk_sum), floats(dv_sum), floats(along)};
  device.run<Problem, Backward>(p, g, backward<Type::kFloat>, backward<Type::kBFloat16>, backward<Type::kHalf>);
  return {dqk, dv};
}

}  // namespace
}  // namespace asr::cuda::lsh

STABLE_TORCH_LIBRARY_IMPL(asr, CUDA, m) {
  m.impl("lsh_attention", TORCH_BOX(&asr::cuda::lsh::run_forward));
  m.impl("lsh_attention_backward", TORCH_BOX(&asr::cuda::lsh::run_backward));
}
