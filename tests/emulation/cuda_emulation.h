// CUDA's threads on the processor, for tests: one thread of the system for each thread of a block, blocks one after
// another. Barriers are real, so that ThreadSanitizer sees a missing one, and shared and global memory are ordinary
// memory, so that AddressSanitizer sees a wrong index. Only what csrc/cuda uses is here.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include <pthread.h>

#define ASR_BOTH
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
inline int __popc(unsigned x) { return std::popcount(x); }

namespace emulation {

// Of the system, not std::barrier: that one spins, which costs most where threads are many and processors few. Two in
// turn: a thread that wakes late from one takes over what the others knew when they came to it last, and if they have
// been there again meanwhile, a race between the two times goes unseen.
class Barrier {
 public:
  explicit Barrier(int size) {
    for (pthread_barrier_t& one : two_) pthread_barrier_init(&one, nullptr, static_cast<unsigned>(size));
  }
  ~Barrier() {
    for (pthread_barrier_t& one : two_) pthread_barrier_destroy(&one);
  }
  void wait(unsigned& turn) { pthread_barrier_wait(&two_[turn++ % 2]); }

 private:
  pthread_barrier_t two_[2];
};

inline thread_local unsigned block_turn, warp_turn;  // how often this thread waited

struct Warp {
  Barrier barrier;
  uint32_t lanes[32];
  explicit Warp(int size) : barrier(size) {}
};

struct Block {
  Barrier barrier;
  std::vector<std::unique_ptr<Warp>> warps;
  explicit Block(int size) : barrier(size) {
    for (int i = 0; i < size; i += 32) warps.push_back(std::make_unique<Warp>(min(32, size - i)));
  }
};

inline Block* block;
inline int removed = -1;  // the number of a __syncthreads(), in the order of the text, that does nothing

inline Warp& warp() { return *block->warps[threadIdx.x / 32]; }

inline void synchronise(int number) {
  if (number != removed) block->barrier.wait(block_turn);
}

// f of what all lanes of the warp brought.
template <typename T, typename F>
auto exchange(T x, const F& f) {
  static_assert(sizeof(T) == 4);
  warp().lanes[threadIdx.x % 32] = std::bit_cast<uint32_t>(x);
  warp().barrier.wait(warp_turn);
  const auto result = f(warp().lanes);
  warp().barrier.wait(warp_turn);
  return result;
}

template <typename T>
T shuffle(T x, int lane) {
  return exchange(x, [&](const uint32_t* lanes) { return std::bit_cast<T>(lanes[lane]); });
}

inline unsigned match(int x) {
  return exchange(x, [&](const uint32_t* lanes) {
    unsigned same = 0;
    for (int i = 0; i < 32; ++i) same |= static_cast<unsigned>(lanes[i] == static_cast<uint32_t>(x)) << i;
    return same;
  });
}

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, dim3 grid, dim3 size, const Arguments&... arguments) {
  Block shared(static_cast<int>(size.x));
  block = &shared, gridDim = grid, blockDim = size;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < size.x; ++i)
    threads.emplace_back([&, i] {
      threadIdx = dim3(i, 0, 0);
      for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
          for (unsigned x = 0; x < grid.x; ++x) {
            blockIdx = dim3(x, y, z);
            kernel(arguments...);
            shared.barrier.wait(block_turn);
          }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace emulation

#define __syncthreads() emulation::synchronise(__COUNTER__)
#define __syncwarp() emulation::warp().barrier.wait(emulation::warp_turn)
#define __shfl_xor_sync(mask, mine, step) emulation::shuffle(mine, static_cast<int>(threadIdx.x % 32) ^ (step))
#define __match_any_sync(mask, mine) emulation::match(mine)
#define ASR_LAUNCH(kernel, grid, block, stream, ...) \
  static_cast<void>(stream), emulation::launch(kernel, grid, block, __VA_ARGS__)

// To the nearest of the floats with `bits` fewer digits; ties go to even.
inline float rounded(float x, int bits) {
  const uint32_t all = std::bit_cast<uint32_t>(x), half = (1u << (bits - 1)) - 1 + (all >> bits & 1);
  return std::isfinite(x) ? std::bit_cast<float>((all + half) >> bits << bits) : x;
}

typedef _Float16 __half;
struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half __float2half(float x) { return static_cast<__half>(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16(float x) {
  return {static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded(x, 16)) >> 16)};
}

// Warp matrix products 16 x 16 x 8. Every lane holds the whole operands but its own share of the result, so that what
// CUDA leaves to a barrier between lanes is left to one here too.
namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };
namespace precision {
struct tf32 {};
}

template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  static constexpr bool result = std::is_same_v<Use, accumulator>;
  static constexpr int num_elements = result ? m * n / 32 : 16 * k;
  float x[num_elements];
};

inline float __float_to_tf32(float x) { return rounded(x, 13); }

// CUDA wants fragments at multiples of 32 bytes, and rows at multiples of 16.
inline void check(const float* p, int ld) {
  if (reinterpret_cast<uintptr_t>(p) % 32 == 0 && ld % 4 == 0) return;
  std::fprintf(stderr, "a fragment is not aligned\n");
  std::abort();
}

template <typename F>
void fill_fragment(F& f, float value) {
  for (float& x : f.x) x = value;
}

// x holds A by rows, B by rows too.
template <typename Use, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 8, precision::tf32, Layout>& f, const float* from, int ld) {
  check(from, ld);
  constexpr int rows = std::is_same_v<Use, matrix_a> ? 16 : 8, columns = 128 / rows;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j)
      f.x[i * columns + j] = std::is_same_v<Layout, row_major> ? from[i * ld + j] : from[j * ld + i];
}

template <typename A, typename B, typename C>
void mma_sync(C& to, const A& a, const B& b, const C& c) {
  for (int e = 0; e < C::num_elements; ++e) {
    const int i = (e * 32 + threadIdx.x % 32) / 16, j = threadIdx.x % 16;
    float sum = c.x[e];
    for (int p = 0; p < 8; ++p) sum += a.x[i * 8 + p] * b.x[p * 16 + j];
    to.x[e] = sum;
  }
}

template <typename C>
void store_matrix_sync(float* to, const C& c, int ld, layout_t) {
  check(to, ld);
  for (int e = 0; e < C::num_elements; ++e)
    to[(e * 32 + threadIdx.x % 32) / 16 * ld + threadIdx.x % 16] = c.x[e];
}

}  // namespace nvcuda::wmma
