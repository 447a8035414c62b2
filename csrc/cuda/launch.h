// What the kernels need from the CUDA toolkit. A compiler that is no nvcc takes cuda_emulation.h instead, which runs
// kernels on the processor, a thread of the system for each thread of a block: for tests where there is no GPU.
#pragma once

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#define ASR_BOTH __host__ __device__
// 0 blocks are no launch in CUDA, but nothing to do here. An error stays with the runtime until `ops.cpp` asks for it.
#define ASR_LAUNCH(kernel, grid, block, stream, ...)                                               \
  do {                                                                                             \
    const dim3 blocks = grid;                                                                      \
    if (blocks.x) kernel<<<blocks, block, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__);    \
  } while (false)

#elif !defined(ASR_BOTH)  // the emulation defines it too

#include "cuda_emulation.h"

#endif
