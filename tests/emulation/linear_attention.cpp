// Runs the CUDA kernels of linear attention under emulation. See program.h and test_cuda_emulation.py.

#include "ops.cuh"
#include "program.h"

using namespace asr::cuda;

namespace {

template <Type type, int L>
void run(File& in, std::ofstream& out, const std::vector<int64_t>& head) {
  typedef typename Element<type>::type T;
  Problem p{};
  p.batch = head[3], p.time = head[4], p.heads = head[5], p.dim = head[6], p.width = head[7], p.segment = head[8];
  p.map = static_cast<FeatureMap>(head[9]);
  p.causal = head[0] > 0, p.normalise = head[10];
  p.eps = 1e-6f;
  std::vector<std::vector<char>> kept;
  kept.reserve(4);
  const Rows q = in.rows(kept), k = in.rows(kept), v = in.rows(kept), dout = in.rows(kept);
  const int64_t rows = p.rows(), states = rows * p.dim * p.width, sums = rows * p.dim;
  std::vector<int64_t> lengths = in.read<int64_t>(p.batch);
  std::vector<float> table = in.read<float>(head[11] ? p.time * p.dim : 0);
  std::vector<float> decay = in.read<float>(head[12] ? p.heads : 0);
  std::vector<float> kv = in.read<float>(head[13] ? states : 0), ksum = in.read<float>(head[13] ? sums : 0);
  std::vector<float> dkv = in.read<float>(states), dksum = in.read<float>(sums);
  p.lengths = lengths.data();
  p.table = head[11] ? table.data() : nullptr;
  p.decay = head[12] ? decay.data() : nullptr;

  const auto like = [&](Result& memory, int64_t dim) {
    return Rows{memory.bytes.data(), {p.time * p.heads * dim, p.heads * dim, dim, 1}};
  };
  const int64_t q_size = rows * p.time * p.dim * sizeof(T), v_size = rows * p.time * p.width * sizeof(T);
  const int64_t parts = p.causal ? p.segments() : std::max<int64_t>(1, p.segments());
  Result y(v_size), last_kv(states * 4), last_ksum(sums * 4);
  Result parts_kv(parts * states * 4), parts_ksum(parts * sums * 4);
  State initial{}, last{last_kv.as(), last_ksum.as()}, part{parts_kv.as(), parts_ksum.as()};
  if (head[13]) initial = {kv.data(), ksum.data()};
  if (head[0] == 2) {
    Ops<type, L>::step(p, {q, k, v, like(y, p.width), initial}, nullptr);
    out.write(y.bytes.data(), y.bytes.size());
    out.write(reinterpret_cast<char*>(kv.data()), states * 4);
    out.write(reinterpret_cast<char*>(ksum.data()), sums * 4);
    return;
  }
  Ops<type, L>::forward(p, {q, k, v, like(y, p.width), initial, last, part}, nullptr);

  const int64_t slopes = 2 * rows * slope_parts(p.time, p.dim, L) * 8;
  Result dq(q_size), dk(q_size), dv(v_size), first_kv(states * 4), first_ksum(sums * 4);
  Result inverse(rows * p.time * 4), pull(rows * p.time * 4), slope(rows * 4), partial(slopes);
  Backward g{q, k, v, dout, like(dq, p.dim), like(dk, p.dim), like(dv, p.width), initial, last, {}, {}, part,
             inverse.as(), pull.as(), slope.as(), partial.as<double>()};
  g.dinitial = {first_kv.as(), first_ksum.as()};
  if (p.causal) g.dlast = {dkv.data(), dksum.data()};
  Ops<type, L>::backward(p, g, nullptr);
  for (const Result* r : {&y, &last_kv, &last_ksum, &dq, &dk, &dv, &first_kv, &first_ksum, &slope})
    out.write(r->bytes.data(), r->bytes.size());
}

}  // namespace

int main(int count, char** arguments) {
  return run_program(count, arguments, __COUNTER__, 14, [](File& in, std::ofstream& out, const auto& head) {
    if (head[2] == 32) run<Type::kBFloat16, 32>(in, out, head);  // op, dtype, tile, sizes …, options
    else if (head[1] == 0) run<Type::kFloat, 16>(in, out, head);
    else if (head[1] == 1) run<Type::kBFloat16, 16>(in, out, head);
    else run<Type::kHalf, 16>(in, out, head);
  });
}
