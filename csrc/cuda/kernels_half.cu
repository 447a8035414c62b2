// The kernels for one dtype: a file each, compiled side by side.
#include "ops.cuh"

namespace asr::cuda {

template void forward<Type::kHalf>(const Problem&, const Forward&, void*);
template void backward<Type::kHalf>(const Problem&, const Backward&, void*);
template void step<Type::kHalf>(const Problem&, const Step&, void*);

}  // namespace asr::cuda
