// LSH attention for one dtype: a file each, compiled side by side.
#include "lsh_ops.cuh"

namespace asr::cuda::lsh {

template void forward<Type::kFloat>(const Problem&, const Forward&, void*);
template void backward<Type::kFloat>(const Problem&, const Backward&, void*);

}  // namespace asr::cuda::lsh
