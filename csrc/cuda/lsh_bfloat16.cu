// LSH attention for one dtype: a file each, compiled side by side.
#include "lsh_ops.cuh"

namespace asr::cuda::lsh {

template void forward<Type::kBFloat16>(const Problem&, const Forward&, void*);
template void backward<Type::kBFloat16>(const Problem&, const Backward&, void*);

}  // namespace asr::cuda::lsh
