// The CUDA side of linear attention's ops: checks and memory. Plain C++; the kernels are in the .cu files.

#include <optional>
#include <string>
#include <tuple>

#include <torch/csrc/stable/library.h>

#include "device.h"

namespace asr::cuda {
namespace {

using Optional = std::optional<Tensor>;

FeatureMap feature_map(const std::string& name) {
  if (name == "elu") return FeatureMap::kElu;
  if (name == "relu") return FeatureMap::kRelu;
  STD_TORCH_CHECK(name == "identity", "feature_map: elu, relu or identity");
  return FeatureMap::kIdentity;
}

const float* floats(const Optional& t) { return t ? t->const_data_ptr<float>() : nullptr; }

State state(const Tensor& kv, const Tensor& ksum) {
  return {static_cast<float*>(kv.data_ptr()), static_cast<float*>(ksum.data_ptr())};
}

State state(const Optional& kv, const Optional& ksum) { return kv ? state(*kv, *ksum) : State{}; }

// What all ops check.
class Op : public Device {
 public:
  Problem problem{};

  Op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* lengths, const Optional& table,
     const Optional& decay, const std::string& map, bool causal, bool normalise, double eps)
      : Device(q) {
    check_rows(q, k, v, lengths ? *lengths : torch::stable::new_empty(q, {q.size(0)}, ScalarType::Long));
    if (lengths) here({lengths});
    here({&q, &k, &v});
    STD_TORCH_CHECK(q.size(3) > 0 && v.size(3) > 0, "q and v: at least one column");
    for (const Optional* t : {&table, &decay})
      if (*t) here({&**t});
    const Batch batch{q.size(0), q.size(1), q.size(2), q.size(3), v.size(3),
                      lengths ? lengths->const_data_ptr<int64_t>() : nullptr};
    problem = {batch, segment_frames(batch.dim, batch.width, causal), floats(table), floats(decay),
               feature_map(map), causal, normalise, static_cast<float>(eps)};
    check_blocks(batch.rows() * batch.tiles(kTile), batch);
  }

  int64_t segments() const { return problem.rows() * problem.segments(); }
};

// States of all segments of all heads; they live as long as this does.
struct Parts {
  Tensor kv, ksum;

  Parts(const Tensor& like, const Op& op)
      : kv(empty(like, {op.segments(), op.problem.dim, op.problem.width})),
        ksum(empty(like, {op.segments(), op.problem.dim})) {}
  operator State() const { return state(kv, ksum); }
};

std::tuple<Tensor, Tensor, Tensor> run_forward(
    const Op& op, const Tensor& q, const Tensor& k, const Tensor& v, const State& initial) {
  const Problem& p = op.problem;
  Tensor out = torch::stable::new_empty(v, v.sizes());
  Tensor kv = empty(v, {p.batch, p.heads, p.dim, p.width}), ksum = empty(v, {p.batch, p.heads, p.dim});
  const Parts parts(v, op);
  const Forward f{rows(q), rows(k), rows(v), rows(out), initial, state(kv, ksum), parts};
  op.run<Problem, Forward>(p, f, forward<Type::kFloat>, forward<Type::kBFloat16>, forward<Type::kHalf>);
  return {out, kv, ksum};
}

std::tuple<Tensor, Tensor, Tensor> run_backward(const Op& op, const Tensor& q, const Tensor& v, Backward& g) {
  const Problem& p = op.problem;
  Tensor dq = torch::stable::new_empty(q, q.sizes()), dk = torch::stable::new_empty(q, q.sizes());
  Tensor dv = torch::stable::new_empty(v, v.sizes());
  const Tensor inverse = empty(v, {p.rows(), p.time}), pull = empty(v, {p.rows(), p.time});
  const Tensor slopes = empty(v, {p.decay ? 2 * p.rows() * slope_parts(p.time, p.dim) : 0}, ScalarType::Double);
  const Parts parts(v, op);
  g.dq = rows(dq), g.dk = rows(dk), g.dv = rows(dv), g.parts = parts;
  g.inverse = static_cast<float*>(inverse.data_ptr()), g.pull = static_cast<float*>(pull.data_ptr());
  g.slopes = static_cast<double*>(slopes.data_ptr());
  op.run<Problem, Backward>(p, g, backward<Type::kFloat>, backward<Type::kBFloat16>, backward<Type::kHalf>);
  return {dq, dk, dv};
}

std::tuple<Tensor, Tensor, Tensor> linear_forward(
    Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, std::string map, double eps) {
  check_table(table, q);
  const Op op(q, k, v, &lengths, table, std::nullopt, map, false, true, eps);
  return run_forward(op, q, k, v, {});
}

std::tuple<Tensor, Tensor, Tensor> linear_backward(
    Tensor dout, Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, Tensor kv, Tensor ksum, std::string map,
    double eps) {
  check_table(table, q);
  const Op op(q, k, v, &lengths, table, std::nullopt, map, false, true, eps);
  const Problem& p = op.problem;
  check_rows(v, v, dout, lengths);
  STD_TORCH_CHECK(dout.size(3) == p.width, "dout: the shape of v");
  check_state(kv, {p.batch, p.heads, p.dim, p.width}), check_state(ksum, {p.batch, p.heads, p.dim});
  op.here({&dout, &kv, &ksum});
  const Tensor total_kv = empty(v, {p.rows(), p.dim, p.width}), total_ksum = empty(v, {p.rows(), p.dim});
  Backward g{rows(q), rows(k), rows(v), rows(dout)};
  g.last = state(kv, ksum), g.dinitial = state(total_kv, total_ksum);
  return run_backward(op, q, v, g);
}

void check_states(const Op& op, const Optional& decay, const Optional& kv, const Optional& ksum) {
  const Problem& p = op.problem;
  STD_TORCH_CHECK(kv.has_value() == ksum.has_value(), "give both kv and ksum, or neither");
  if (decay) check_state(*decay, {p.heads});
  if (!kv) return;
  check_state(*kv, {p.batch, p.heads, p.dim, p.width}), check_state(*ksum, {p.batch, p.heads, p.dim});
  op.here({&*kv, &*ksum});
}

std::tuple<Tensor, Tensor, Tensor> causal_forward(
    Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, Optional decay, Optional kv, Optional ksum,
    std::string map, bool normalise, double eps) {
  check_table(table, q);
  const Op op(q, k, v, &lengths, table, decay, map, true, normalise, eps);
  check_states(op, decay, kv, ksum);
  return run_forward(op, q, k, v, state(kv, ksum));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> causal_backward(
    Tensor dout, Tensor dkv, Tensor dksum, Tensor q, Tensor k, Tensor v, Tensor lengths, Optional table, Optional decay,
    Optional kv, Optional ksum, Tensor last_kv, Tensor last_ksum, std::string map, bool normalise, double eps) {
  check_table(table, q);
  const Op op(q, k, v, &lengths, table, decay, map, true, normalise, eps);
  const Problem& p = op.problem;
  check_rows(v, v, dout, lengths);
  STD_TORCH_CHECK(dout.size(3) == p.width, "dout: the shape of v");
  check_states(op, decay, kv, ksum);
  check_states(op, std::nullopt, dkv, dksum);
  check_states(op, std::nullopt, last_kv, last_ksum);
  op.here({&dout});
  Tensor first_kv = empty(v, {p.batch, p.heads, p.dim, p.width}), first_ksum = empty(v, {p.batch, p.heads, p.dim});
  Tensor slope = torch::stable::new_zeros(v, {p.batch, p.heads}, ScalarType::Float);
  Backward g{rows(q), rows(k), rows(v), rows(dout)};
  g.initial = state(kv, ksum), g.last = state(last_kv, last_ksum), g.dlast = state(dkv, dksum);
  g.dinitial = state(first_kv, first_ksum), g.slope = static_cast<float*>(slope.data_ptr());
  auto [dq, dk, dv] = run_backward(op, q, v, g);
  return {dq, dk, dv, first_kv, first_ksum, slope};
}

// q, k (batch, heads, dim), v (batch, heads, width), table (dim,); the state is updated in place.
Tensor causal_step(
    Tensor q, Tensor k, Tensor v, Optional table, Optional decay, Tensor kv, Tensor ksum, std::string map,
    bool normalise, double eps) {
  STD_TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && v.dim() == 3, "q, k, v: (batch, heads, dim)");
  const Tensor q4 = torch::stable::unsqueeze(q, 1), k4 = torch::stable::unsqueeze(k, 1);
  const Tensor v4 = torch::stable::unsqueeze(v, 1);
  if (table) check_state(*table, {q.size(2)});
  const Op op(q4, k4, v4, nullptr, table, decay, map, true, normalise, eps);
  check_states(op, decay, kv, ksum);
  Tensor out = torch::stable::new_empty(v, v.sizes());
  const Step s{rows(q4), rows(k4), rows(v4), rows(torch::stable::unsqueeze(out, 1)), state(kv, ksum)};
  op.run<Problem, Step>(op.problem, s, step<Type::kFloat>, step<Type::kBFloat16>, step<Type::kHalf>);
  return out;
}

}  // namespace
}  // namespace asr::cuda

STABLE_TORCH_LIBRARY_IMPL(asr, CUDA, m) {
  m.impl("linear_attention", TORCH_BOX(&asr::cuda::linear_forward));
  m.impl("linear_attention_backward", TORCH_BOX(&asr::cuda::linear_backward));
  m.impl("causal_linear_attention", TORCH_BOX(&asr::cuda::causal_forward));
  m.impl("causal_linear_attention_backward", TORCH_BOX(&asr::cuda::causal_backward));
  m.impl("causal_linear_step", TORCH_BOX(&asr::cuda::causal_step));
}
