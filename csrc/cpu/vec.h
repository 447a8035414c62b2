// Vectors of floats by GCC/Clang extensions: one source for AVX-512, AVX2, NEON and SSE2.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace asr {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t ivec __attribute__((vector_size(kWidth * 4)));
// Memory is only known to hold floats: neither aligned nor of one type.
typedef float loose __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));

inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
inline void store(float* p, vec x) { *reinterpret_cast<loose*>(p) = x; }
inline vec splat(float x) { return x - vec{}; }
// Where a or b is NaN both give b. GCC does not find the instruction for it by itself.
#if defined(__AVX512F__)
inline vec min(vec a, vec b) { return _mm512_min_ps(a, b); }
inline vec max(vec a, vec b) { return _mm512_max_ps(a, b); }
#elif defined(__AVX__)
inline vec min(vec a, vec b) { return _mm256_min_ps(a, b); }
inline vec max(vec a, vec b) { return _mm256_max_ps(a, b); }
#else
inline vec min(vec a, vec b) { return a < b ? a : b; }
inline vec max(vec a, vec b) { return a > b ? a : b; }
#endif

inline float sum(vec x) {
  float parts[kWidth];
  std::memcpy(parts, &x, sizeof(x));
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
}

constexpr int64_t padded(int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; }

// e^x to 2e-7 relative; 1.2e-38 (not 0) below -87.3, so that a feature map never loses a frame.
inline vec exp(vec x) {
  x = min(splat(88.7f), max(splat(-87.3f), x));  // in this order NaN stays NaN
  const vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const vec shifted = x * 1.44269504088896341f + magic;
  const vec n = shifted - magic;
  const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  ivec bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits - 0x4B400000 + 127) << 23;
  vec scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return y * scale;
}

}  // namespace asr
