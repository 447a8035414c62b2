// Runs the CUDA kernels of LSH attention under emulation. See program.h and test_cuda_lsh_emulation.py.

#include <cmath>

#include "lsh_ops.cuh"
#include "program.h"

using namespace asr::cuda;

namespace {

template <Type type, int L>
void run(File& in, std::ofstream& out, const std::vector<int64_t>& head) {
  typedef typename Element<type>::type T;
  lsh::Problem p{};
  p.batch = head[2], p.time = head[3], p.heads = head[4], p.dim = head[5], p.width = head[6];
  p.rounds = head[7], p.size = std::min(head[8], std::max<int64_t>(1, p.time));
  p.causal = head[9];
  p.scale = 1 / std::sqrt(static_cast<float>(p.dim));
  const int64_t columns = head[10];
  std::vector<std::vector<char>> kept;
  kept.reserve(3);
  const Rows x = in.rows(kept), v = in.rows(kept), dout = in.rows(kept);
  std::vector<int64_t> lengths = in.read<int64_t>(p.batch);
  std::vector<float> rotation = in.read<float>(p.rounds * p.dim * columns);
  p.lengths = lengths.data();

  const auto like = [&](Result& memory, int64_t dim) {
    return Rows{memory.bytes.data(), {p.time * p.heads * dim, p.heads * dim, dim, 1}};
  };
  const int64_t frames = p.rows() * p.time, several = p.rounds > 1 ? frames : 0;
  Result y(frames * p.width * sizeof(T)), lse(frames * 4), order(frames * p.rounds * 4), norm(frames * 4);
  {
    Result chunk(frames * p.rounds * 4), sums(several * p.width * 4), even(several * 8), odd(several * 8);
    const lsh::Forward f{x, v, like(y, p.width), rotation.data(), {p.dim * columns, columns, 1}, columns, lse.as(),
                         order.as<int32_t>(), chunk.as<int32_t>(), norm.as(), sums.as(), {even.as(), odd.as()}};
    lsh::Ops<type, L>::forward(p, f, nullptr);
  }
  Result chunk(frames * p.rounds * 4), inner(frames * 4), dx_sum(several * p.dim * 4), dv_sum(several * p.width * 4);
  Result along(several * 4), dx(frames * p.dim * sizeof(T)), dv(frames * p.width * sizeof(T));
  const lsh::Backward g{x, v, like(y, p.width), dout, like(dx, p.dim), like(dv, p.width), lse.as(), order.as<int32_t>(),
                        chunk.as<int32_t>(), norm.as(), inner.as(), dx_sum.as(), dv_sum.as(), along.as()};
  lsh::Ops<type, L>::backward(p, g, nullptr);
  for (const Result* r : {&y, &lse, &order, &dx, &dv}) out.write(r->bytes.data(), r->bytes.size());
}

}  // namespace

int main(int count, char** arguments) {
  return run_program(count, arguments, __COUNTER__, 11, [](File& in, std::ofstream& out, const auto& head) {
    if (head[1] == 32) run<Type::kBFloat16, 32>(in, out, head);  // dtype, tile, sizes …, options
    else if (head[0] == 0) run<Type::kFloat, 16>(in, out, head);
    else if (head[0] == 1) run<Type::kBFloat16, 16>(in, out, head);
    else run<Type::kHalf, 16>(in, out, head);
  });
}
