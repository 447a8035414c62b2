// What the op hands to the kernels of LSH attention: plain memory, without torch.
#pragma once

#include "problem.h"

namespace asr::cuda::lsh {

constexpr int kMaxColumns = 1024;  // of a rotation: at most 2048 buckets
constexpr int32_t kNever = 2147483647;

struct Problem : Batch {
  int64_t rounds, size;  // size: frames of a chunk, at most `time`
  bool causal;
  float scale;           // of scores: dim^-1/2

  // Of an utterance of n frames: 1 if all fit into one, else the even number at or above n / size.
  ASR_SHARED_CODE int64_t buckets(int64_t n) const {
    const int64_t pairs = (n + 2 * size - 1) / (2 * size);
    return n <= size ? 1 : 2 * (pairs < kMaxColumns ? pairs : kMaxColumns);
  }
};

// Memory that the caller provides, contiguous. `order` (batch, heads, rounds, time): frames in sorted order. `chunk`
// (batch, heads, time, rounds): where in that order each frame stands; until they are sorted it holds their buckets,
// (batch, heads, rounds, time).
struct Forward {
  Rows x, v, out;
  const float* rotation;
  int64_t rotation_stride[3], columns;  // (rounds, dim, columns)
  float* lse;                           // (batch, heads, time)
  int32_t *order, *chunk;
  float *norm, *y;                      // (batch, heads, time), and (…, width), null with one round
  float* state[2];                      // (batch, heads, time, 2): read by one round, written by the next
};

struct Backward {
  Rows x, v, out, dout, dx, dv;
  const float* lse;
  const int32_t* order;
  int32_t* chunk;
  float *norm, *inner;               // (batch, heads, time)
  float *dx_sum, *dv_sum, *along;    // (…, dim), (…, width), (…): of the rounds so far, null with one
};

template <Type type>
void forward(const Problem&, const Forward&, void* stream);

template <Type type>
void backward(const Problem&, const Backward&, void* stream);

}  // namespace asr::cuda::lsh
