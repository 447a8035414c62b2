// What the programs that run kernels under emulation share: cases from a file, results into another. test_cuda_*.py
// write the one and read the other.
//
//     program cases results [number of a barrier to remove]
#pragma once

#include <algorithm>
#include <fstream>
#include <iostream>

#include "cuda_emulation.h"
#include "problem.h"

namespace asr::cuda {

struct File {
  std::ifstream file;

  template <typename T>
  std::vector<T> read(int64_t count) {
    std::vector<T> values(count);
    file.read(reinterpret_cast<char*>(values.data()), count * sizeof(T));
    return values;
  }

  // A tensor's memory with its strides.
  Rows rows(std::vector<std::vector<char>>& kept) {
    const std::vector<int64_t> head = read<int64_t>(6);  // bytes, offset in bytes, strides
    kept.push_back(read<char>(head[0]));
    Rows x;
    x.data = kept.back().data() + head[1];
    std::copy_n(head.begin() + 2, 4, x.stride);
    return x;
  }
};

// Memory of a result; what nobody writes is NaN in every dtype.
struct Result {
  std::vector<char> bytes;

  explicit Result(int64_t size) : bytes(size, static_cast<char>(0xff)) {}
  template <typename T = float>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
};

// Calls f(in, out, head) for every case; head: its first `numbers` integers.
template <typename F>
int run_program(int count, char** arguments, int barriers, int64_t numbers, const F& f) {
  if (count < 3) {
    std::cout << barriers << " barriers\n";
    return 0;
  }
  if (count > 3) emulation::removed = std::atoi(arguments[3]);
  File in{std::ifstream(arguments[1], std::ios::binary)};
  std::ofstream out(arguments[2], std::ios::binary);
  while (in.file.peek() != EOF) f(in, out, in.read<int64_t>(numbers));
  return 0;
}

}  // namespace asr::cuda
