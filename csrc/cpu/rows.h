// Rows of (batch, time, heads, dim) tensors of any strides and dtype, to and from float buffers.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

#include "vec.h"

namespace asr {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#if defined(__FLT16_MAX__)
typedef _Float16 half;  // the processor's own conversion where it has one
#else
typedef Half half;
#endif

// A tensor of four dimensions (batch, time, heads, dim) as raw memory; strides in elements.
struct Rows {
  char* data;
  ScalarType type;
  int64_t bytes;  // of an element
  int64_t batch, time, heads, dim;
  int64_t stride[4];

  explicit Rows(const Tensor& t)
      : data(static_cast<char*>(t.data_ptr())),
        type(t.scalar_type()),
        bytes(type == ScalarType::Float ? 4 : 2),
        batch(t.size(0)),
        time(t.size(1)),
        heads(t.size(2)),
        dim(t.size(3)),
        stride{t.stride(0), t.stride(1), t.stride(2), t.stride(3)} {}

  // Of a tensor (batch, heads, dim).
  static Rows one_frame(const Tensor& t) {
    STD_TORCH_CHECK(t.dim() == 3, "q, k, v: (batch, heads, dim)");
    Rows rows;
    rows.data = static_cast<char*>(t.data_ptr()), rows.type = t.scalar_type();
    rows.bytes = rows.type == ScalarType::Float ? 4 : 2;
    rows.batch = t.size(0), rows.time = 1, rows.heads = t.size(1), rows.dim = t.size(2);
    rows.stride[0] = t.stride(0), rows.stride[1] = 0, rows.stride[2] = t.stride(1), rows.stride[3] = t.stride(2);
    return rows;
  }

  template <typename T>
  T* at(int64_t b, int64_t t, int64_t h) const {
    return reinterpret_cast<T*>(data) + b * stride[0] + t * stride[1] + h * stride[2];
  }

 private:
  Rows() = default;
};

// What every op demands of its inputs; the Python face checks the same with friendlier words.
inline void check_rows(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) {
  STD_TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "q, k, v: (batch, time, heads, dim)");
  for (int i = 0; i < 4; ++i) STD_TORCH_CHECK(q.size(i) == k.size(i), "q and k differ in shape");
  for (int i = 0; i < 3; ++i) STD_TORCH_CHECK(q.size(i) == v.size(i), "q and v differ in batch, time or heads");
  const ScalarType type = q.scalar_type();
  STD_TORCH_CHECK(
      type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half,
      "q: float32, bfloat16 or float16");
  STD_TORCH_CHECK(k.scalar_type() == type && v.scalar_type() == type, "q, k and v differ in dtype");
  STD_TORCH_CHECK(
      lengths.dim() == 1 && lengths.size(0) == q.size(0) && lengths.scalar_type() == ScalarType::Long &&
          lengths.is_contiguous(),
      "lengths: (batch,), int64, contiguous");
}

// Cosines and sines of rotary positions: (time, dim) float32.
inline void check_table(const std::optional<Tensor>& table, const Tensor& q) {
  if (!table) return;
  STD_TORCH_CHECK(
      table->dim() == 2 && table->size(0) >= q.size(1) && table->size(1) == q.size(3) && q.size(3) % 2 == 0 &&
          table->scalar_type() == ScalarType::Float && table->is_contiguous(),
      "table: (time, dim) float32, contiguous, dim even");
}

// A state or its gradient.
inline void check_state(const Tensor& t, std::initializer_list<int64_t> shape) {
  bool same = t.dim() == static_cast<int64_t>(shape.size()) && t.scalar_type() == ScalarType::Float && t.is_contiguous();
  int64_t i = 0;
  for (int64_t size : shape) same = same && t.size(i++) == size;
  STD_TORCH_CHECK(same, "a state has the wrong shape, or is not float32 and contiguous");
}

// Floats aligned to a vector, not initialised.
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : memory_(static_cast<float*>(std::aligned_alloc(64, (std::max<int64_t>(count, 1) * 4 + 63) / 64 * 64))) {
    if (!memory_) throw std::bad_alloc();
  }
  operator float*() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> memory_;
};

// The same rows of the next tile: heads lie interleaved, which the processor does not foresee.
template <typename T>
inline void prefetch_next(const T* row, int64_t step, int64_t count, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 64 / sizeof(T)) __builtin_prefetch(row + count * step + d);
}

// Rows of which memory is asked for a few at a time, between the products of the rows at hand: at once they would make
// these wait.
class Ahead {
 public:
  Ahead(const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, int64_t turns)
      : at_(x.data + x.bytes * (b * x.stride[0] + start * x.stride[1] + h * x.stride[2])),
        step_(x.bytes * x.stride[1]), width_(x.bytes * x.dim), left_(count), share_((count + turns - 1) / turns) {}

  void operator()() {
    for (int64_t n = std::min(share_, left_); n > 0; --n, --left_, at_ += step_)
      for (int64_t i = 0; i < width_; i += 64) __builtin_prefetch(at_ + i);
  }

 private:
  const char* at_;
  int64_t step_, width_, left_, share_;
};

struct Unchanged {
  vec operator()(vec x, int64_t) const { return x; }
};

template <typename T, typename F>
inline void load_rows_as(
    const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, float* to, int64_t ld, const F& f, bool next) {
  const T* from = x.at<T>(b, start, h);
  for (int64_t t = 0; t < count; ++t, from += x.stride[1], to += ld) {
    if (next) prefetch_next(from, x.stride[1], count, x.dim);
    if constexpr (std::is_same_v<T, float>)
      if (x.stride[3] == 1) {
        int64_t d = 0;
        for (; d + 4 * kWidth <= x.dim; d += 4 * kWidth) {  // side by side: the steps of f wait for each other
          vec y[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) y[i] = f(load(from + d + i * kWidth), t);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) store(to + d + i * kWidth, y[i]);
        }
        for (; d + kWidth <= x.dim; d += kWidth) store(to + d, f(load(from + d), t));
        if (d < x.dim) {
          float last[kWidth] = {};
          std::copy_n(from + d, x.dim - d, last);
          store(last, f(load(last), t));
          std::copy_n(last, x.dim - d, to + d);
        }
        std::fill(to + x.dim, to + ld, 0.0f);
        continue;
      }
    if (x.stride[3] == 1)
      for (int64_t d = 0; d < x.dim; ++d) to[d] = static_cast<float>(from[d]);
    else
      for (int64_t d = 0; d < x.dim; ++d) to[d] = static_cast<float>(from[d * x.stride[3]]);
    if constexpr (!std::is_same_v<F, Unchanged>)
      for (int64_t d = 0; d < ld; d += kWidth) store(to + d, f(load(to + d), t));
    if (x.dim < ld) std::fill(to + x.dim, to + ld, 0.0f);
  }
}

// f(x, t) of rows start … start + count of one head, t counting from 0; each is filled up with zeros from dim to ld.
// With `next` memory is asked for as many rows after them.
template <typename F = Unchanged>
inline void load_rows(
    const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, float* to, int64_t ld, const F& f = {},
    bool next = true) {
  if (x.type == ScalarType::Float) load_rows_as<float>(x, b, h, start, count, to, ld, f, next);
  else if (x.type == ScalarType::BFloat16) load_rows_as<BFloat16>(x, b, h, start, count, to, ld, f, next);
  else load_rows_as<half>(x, b, h, start, count, to, ld, f, next);
}

struct Matrix {
  const float* data;
  int64_t ld;
};

// The same without a copy where the rows can be used as they lie.
inline Matrix view_rows(const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, float* copy, int64_t ld) {
  if (x.type == ScalarType::Float && x.stride[3] == 1 && x.dim == ld) {
    const float* rows = x.at<float>(b, start, h);
    return {rows, x.stride[1]};
  }
  load_rows(x, b, h, start, count, copy, ld);
  return {copy, ld};
}

struct Asis {
  vec operator()(vec x, int64_t, int64_t) const { return x; }
};

template <typename T, typename F>
inline void store_rows_as(
    const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, const float* from, int64_t ld, const F& f) {
  T* to = x.at<T>(b, start, h);
  for (int64_t t = 0; t < count; ++t, to += x.stride[1], from += ld) {
    int64_t d = 0;
    if constexpr (std::is_same_v<T, float>)
      if (x.stride[3] == 1)
        for (; d + kWidth <= x.dim; d += kWidth) store(to + d, f(load(from + d), t, d));
    for (; d < x.dim; d += kWidth) {
      float part[kWidth];
      store(part, f(load(from + d), t, d));
      for (int64_t i = 0; i < std::min<int64_t>(kWidth, x.dim - d); ++i)
        to[(d + i) * x.stride[3]] = static_cast<T>(part[i]);
    }
  }
}

// Rows start … start + count of one head become f(row, t, d), for row t of `from` and the vector at its column d.
template <typename F = Asis>
inline void store_rows(
    const Rows& x, int64_t b, int64_t h, int64_t start, int64_t count, const float* from, int64_t ld, const F& f = {}) {
  if (x.type == ScalarType::Float) store_rows_as<float>(x, b, h, start, count, from, ld, f);
  else if (x.type == ScalarType::BFloat16) store_rows_as<BFloat16>(x, b, h, start, count, from, ld, f);
  else store_rows_as<half>(x, b, h, start, count, from, ld, f);
}

// Frames past a row's length: zeros, whatever stood there.
inline void zero_rows(const Rows& x, int64_t b, int64_t h, int64_t start, int64_t stop) {
  if (start >= stop) return;
  const Buffer zeros(padded(x.dim));
  std::fill_n(static_cast<float*>(zeros), padded(x.dim), 0.0f);
  for (int64_t t = start; t < stop; ++t) store_rows(x, b, h, t, 1, zeros, padded(x.dim));
}

}  // namespace asr
