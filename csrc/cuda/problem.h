// What the ops hand to the kernels: plain memory, without torch.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ASR_SHARED_CODE __host__ __device__
#else
#define ASR_SHARED_CODE
#endif

namespace asr::cuda {

enum class Type { kFloat, kBFloat16, kHalf };
enum class FeatureMap { kElu, kRelu, kIdentity };

// A tensor (batch, time, heads, dim) of any strides, in elements.
struct Rows {
  void* data = nullptr;
  int64_t stride[4] = {};
};

// S (dim x width) and z (dim) of every head, or of every segment of every head; contiguous, both or neither.
struct State {
  float* kv = nullptr;
  float* ksum = nullptr;
};

// Padded rows of `time` frames, of which the first `lengths[b]` are real. Any length is allowed: it is cut to 0 … time.
struct Batch {
  int64_t batch, time, heads, dim, width;
  const int64_t* lengths;

  ASR_SHARED_CODE int64_t rows() const { return batch * heads; }
  ASR_SHARED_CODE int64_t tiles(int64_t tile) const { return (time + tile - 1) / tile; }
  ASR_SHARED_CODE int64_t length(int64_t b) const {
    return lengths[b] < 0 ? 0 : lengths[b] < time ? lengths[b] : time;
  }
};

struct Problem : Batch {
  int64_t segment;        // frames whose sum is taken at once
  const float* table;     // cosines and sines, (time, dim), or null
  const float* decay;     // (heads,) or null
  FeatureMap map;
  bool causal, normalise;
  float eps;

  ASR_SHARED_CODE int64_t segments() const { return tiles(segment); }
};

// Memory that the caller provides; `parts` holds rows() · segments() states, `inverse` and `pull` rows() · time floats:
// 1 / den_t and c_t (see linear_attention.cuh).
struct Forward {
  Rows q, k, v, out;
  State initial, last, parts;
};

struct Backward {
  Rows q, k, v, dout, dq, dk, dv;
  State initial, last, dlast, dinitial, parts;
  float *inverse, *pull, *slope;  // slope: (batch, heads), of ln decay
  double* slopes;                 // 2 · rows() · slope_parts()
};

struct Step {
  Rows q, k, v, out;  // time 1
  State state;
};

constexpr int64_t kTile = 64;         // frames and columns of a tile
constexpr int64_t kMaxSegment = 512;  // of the causal op, whose powers of the decay lie in shared memory

// Where within a segment all pairs of frames meet, and between segments states of dim · width floats are kept, twice
// the larger width balances the work; the states then take at most an eighth of the memory of q, k, v and the output
// in float32, a quarter in 16 bits.
inline int64_t segment_frames(int64_t dim, int64_t width, bool causal, int64_t tile = kTile) {
  const int64_t tiles = ((dim > width ? dim : width) + tile - 1) / tile;
  const int64_t frames = (tiles < 1 ? 1 : tiles) * 2 * tile;
  return causal ? (frames < kMaxSegment ? frames : kMaxSegment) : 2 * frames;
}

// Partial sums of the decay's slope for one head.
inline int64_t slope_parts(int64_t time, int64_t dim, int64_t tile = kTile) {
  return (time + tile - 1) / tile * ((dim + tile - 1) / tile);
}

// Why the last launches failed, or null.
const char* last_error();

template <Type type>
void forward(const Problem&, const Forward&, void* stream);

template <Type type>
void backward(const Problem&, const Backward&, void* stream);

template <Type type>
void step(const Problem&, const Step&, void* stream);

}  // namespace asr::cuda
