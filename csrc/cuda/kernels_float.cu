// The kernels for one dtype: a file each, compiled side by side.
#include "ops.cuh"

namespace asr::cuda {

const char* last_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template void forward<Type::kFloat>(const Problem&, const Forward&, void*);
template void backward<Type::kFloat>(const Problem&, const Backward&, void*);
template void step<Type::kFloat>(const Problem&, const Step&, void*);

}  // namespace asr::cuda
