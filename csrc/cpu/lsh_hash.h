// Which frames may meet in LSH attention: buckets by random rotation, then a stable sort by (bucket, time).
// Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", ICLR 2020, section 2.
#pragma once

#include <numeric>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "lsh_chunk.h"

namespace asr {

constexpr int64_t kMaxColumns = 1024;  // of a rotation: at most 2048 buckets
constexpr int64_t kColumns = 64;       // at once: what they give stays in the first-level cache

class Hash {
 public:
  const int64_t rounds;

  // rotation: (rounds, dim, columns) of any strides; `size` frames to a bucket on average.
  Hash(const Tensor& rotation, int64_t dim, int64_t time, int64_t size)
      : rounds(rotation.size(0)),
        dim_(dim),
        size_(size),
        columns_(std::min({rotation.size(2), kMaxColumns, (time + 2 * size - 1) / (2 * size)})),
        across_(rounds * columns_ * dim) {
    const Tensor four = torch::stable::unsqueeze(rotation, 2);
    Rows rows(four);
    rows.dim = columns_;
    const Buffer matrix(dim * columns_);
    for (int64_t r = 0; r < rounds; ++r) {
      load_rows(rows, r, 0, 0, dim, matrix, columns_);
      for (int64_t c = 0; c < columns_; ++c)
        for (int64_t p = 0; p < dim; ++p) across_[(r * columns_ + c) * dim + p] = matrix[p * columns_ + c];
    }
  }

  // Of an utterance of n frames: 1 if all fit into one, else the even number at or above n / size.
  int64_t buckets(int64_t n) const {
    return n <= size_ ? 1 : 2 * std::min(kMaxColumns, (n + 2 * size_ - 1) / (2 * size_));
  }

  // Buckets of kFrames rows of x, ldx apart, in an utterance of n frames, for every round; rounds are ldb apart. As the
  // reference: h(x) = argmax([xR; -xR]), the first of equals. A lane is a frame: maxima need no step across lanes.
  void hash(const float* x, int64_t ldx, int64_t n, int32_t* bucket, int64_t ldb) const {
    const int64_t half = buckets(n) / 2, columns = std::min(half, columns_);
    const Buffer frames(ldx * kFrames), turned(kColumns * kFrames);
    transpose(frames, kFrames, x, ldx, kFrames, ldx);
    for (int64_t r = 0; r < rounds; ++r) {
      vec high[kVectors], low[kVectors];
      ivec at_high[kVectors]{}, at_low[kVectors]{};
      std::fill_n(high, kVectors, splat(-std::numeric_limits<float>::infinity()));
      std::fill_n(low, kVectors, splat(std::numeric_limits<float>::infinity()));
      for (int64_t first = 0; first < columns; first += kColumns) {
        const int64_t count = std::min(kColumns, columns - first);
        product(turned, kFrames, across_ + (r * columns_ + first) * dim_, dim_, 1, frames, kFrames, count, kFrames, dim_);
        for (int64_t c = 0; c < count; ++c)
          for (int i = 0; i < kVectors; ++i) {
            const vec y = load(turned + c * kFrames + i * kWidth);
            const ivec at = static_cast<int32_t>(first + c) - ivec{};
            at_high[i] = y > high[i] ? at : at_high[i];
            high[i] = y > high[i] ? y : high[i];
            at_low[i] = y < low[i] ? at : at_low[i];
            low[i] = y < low[i] ? y : low[i];
          }
      }
      for (int i = 0; i < kVectors; ++i) {
        const ivec found = high[i] >= -low[i] ? at_high[i] : at_low[i] + static_cast<int32_t>(half);
        std::memcpy(bucket + r * ldb + i * kWidth, &found, sizeof(found));
      }
    }
  }

 private:
  int64_t dim_, size_, columns_;
  Buffer across_;  // (rounds, columns, dim)
};

// Frames 0 … n in the order of (bucket, time).
inline void counting_sort(const int32_t* bucket, int64_t n, int64_t buckets, int32_t* order) {
  std::vector<int32_t> next(buckets + 1);
  for (int64_t t = 0; t < n; ++t) ++next[bucket[t] + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (int64_t t = 0; t < n; ++t) order[next[bucket[t]]++] = static_cast<int32_t>(t);
}

}  // namespace asr
