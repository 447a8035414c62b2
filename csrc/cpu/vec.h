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

// Upper half onto lower half until one number is left.
inline float sum(vec x) {
  typedef float four __attribute__((vector_size(16)));
  four parts[kWidth / 4];
  std::memcpy(parts, &x, sizeof(x));
  for (int width = kWidth / 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  const four total = parts[0];
  return (total[0] + total[2]) + (total[1] + total[3]);
}

constexpr int64_t padded(int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; }

// e^x = 2^n e^r, |r| <= ln 2 / 2, for x in [-87.3, 88.37], to 3e-7 relative; NaN stays NaN. The polynomial is the minimax one
// of degree 5 that starts with 1 + r.
inline vec exp_within(vec x) {
  const vec magic = splat(12582912.0f + 127);  // 1.5 * 2^23: adding it rounds to an integer, n + 127, in the low bits
  const vec shifted = x * 1.44269504088896341f + magic;
  const vec r = x - (shifted - magic) * 0.69314718056f;
  vec y = r * 8.28497763723e-3f + 4.18852381408e-2f;
  y = y * r + 1.66674569249e-1f;
  y = y * r + 4.99993026257e-1f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  ivec bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits <<= 23;
  vec scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return y * scale;
}

// e^x; 1.2e-38 (not 0) below -87.3, so that nothing is ever lost whole.
inline vec exp(vec x) { return exp_within(min(splat(88.37f), max(splat(-87.3f), x))); }

}  // namespace asr
