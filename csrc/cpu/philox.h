// Random bits that follow from a key and a place: Philox4x32, 7 rounds. Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011. Nothing is stored, any thread finds its own, and a gradient finds them again.
#pragma once

#include "vec.h"

namespace asr {

typedef uint64_t counters __attribute__((vector_size(32)));  // four, or a 32-bit word of each
typedef uint32_t words __attribute__((vector_size(32)));

// Products of the lower halves.
inline counters multiply(counters a, uint64_t b) {
#if defined(__AVX2__)
  return reinterpret_cast<counters>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(static_cast<int64_t>(b))));
#else
  return (a & 0xFFFFFFFF) * b;
#endif
}

constexpr int64_t kDrawn = 64;  // bytes that four counters give

// `to` = `kept` where a byte is at least `least`, else 0: of the 64 bytes of a group. Counter 4 · group + i gives four words
// w; byte n of w_{2h + j} belongs to element 32 h + 8 n + 2 i + j.
inline void draw(float* to, uint64_t key, int64_t group, int least, float kept) {
  constexpr uint64_t kLow = 0xFFFFFFFF;
  const counters number = counters{0, 1, 2, 3} + 4 * static_cast<uint64_t>(group);
  counters a = number, b = number >> 32, c{}, d{};  // the upper halves of a … d hold anything
  uint64_t first = key & kLow, second = key >> 32;
  for (int round = 0; round < 7; ++round) {
    const counters p = multiply(a, 0xD2511F53), q = multiply(c, 0xCD9E8D57);
    a = (q >> 32) ^ b ^ first, b = q;
    c = (p >> 32) ^ d ^ second, d = p;
    first = (first + 0x9E3779B9) & kLow, second = (second + 0xBB67AE85) & kLow;
  }
  const words halves[2] = {
      reinterpret_cast<words>((a & kLow) | (b << 32)), reinterpret_cast<words>((c & kLow) | (d << 32))};
  uint32_t bits;
  std::memcpy(&bits, &kept, 4);
  for (const words& half : halves)
    for (int byte = 0; byte < 4; ++byte, to += 8) {
      const words drawn = (half >> (8 * byte)) & 255;
      const words values = reinterpret_cast<words>(drawn >= static_cast<uint32_t>(least)) & bits;
      std::memcpy(to, &values, sizeof(values));
    }
}

}  // namespace asr
