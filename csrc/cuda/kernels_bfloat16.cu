// The kernels for one dtype: a file each, compiled side by side.
#include "ops.cuh"

namespace asr::cuda {

template void forward<Type::kBFloat16>(const Problem&, const Forward&, void*);
template void backward<Type::kBFloat16>(const Problem&, const Backward&, void*);
template void step<Type::kBFloat16>(const Problem&, const Step&, void*);

}  // namespace asr::cuda
