// Activation functions of vectors, and their slopes.
#pragma once

#include <string>

#include <torch/headeronly/util/Exception.h>

#include "vec.h"

namespace asr {

inline vec sigmoid(vec x) { return 1.0f / (1.0f + exp(-x)); }

struct Identity {
  static vec value(vec x) { return x; }
  static vec slope(vec) { return splat(1); }
};

struct Relu {
  static vec value(vec x) { return max(splat(0), x); }  // in this order NaN stays NaN
  static vec slope(vec x) { return x > 0.0f ? splat(1) : vec{}; }
};

struct Silu {
  static vec value(vec x) { return x * sigmoid(x); }
  static vec slope(vec x) {
    const vec s = sigmoid(x);
    return s + x * s * (1.0f - s);
  }
};

// x Φ(x), Φ the normal distribution: Abramowitz & Stegun, 1964, 7.1.26, to 1e-7.
struct Gelu {
  static vec value(vec x) { return x * distribution(x, exp(-0.5f * x * x)); }
  static vec slope(vec x) {
    const vec bell = exp(-0.5f * x * x);
    return distribution(x, bell) + 0.398942280401f * x * bell;
  }

 private:
  static vec distribution(vec x, vec bell) {
    const vec t = 1.0f / (1.0f + 0.231641888f * max(x, -x));
    vec tail = t * 0.5307027145f - 0.7265760135f;
    tail = tail * t + 0.7107068705f;
    tail = tail * t - 0.142248368f;
    tail = tail * t + 0.127414796f;
    tail *= t * bell;
    return x > 0.0f ? 1.0f - tail : tail;
  }
};

// f(activation) with the type of that name.
template <typename F>
void with_activation(const std::string& name, const F& f) {
  if (name == "identity") f(Identity());
  else if (name == "relu") f(Relu());
  else if (name == "silu") f(Silu());
  else if (name == "gelu") f(Gelu());
  else STD_TORCH_CHECK(false, "activation: identity, relu, silu or gelu");
}

}  // namespace asr
