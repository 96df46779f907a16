// Functions compiled for several sets of instructions, of which one is chosen at run time: the
// package is built for any processor of the architecture.
#pragma once

#include <ATen/Version.h>

#include <string>

// What is inlined into a function is compiled for its instructions; elsewhere than on x86 they are
// the baseline's.
#if defined(__x86_64__) && defined(__linux__)
#define TORCH_XLA_AVX2 __attribute__((target("avx2,fma")))
#define TORCH_XLA_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx2,fma")))
#else
#define TORCH_XLA_AVX2
#define TORCH_XLA_AVX512
#endif

namespace torch_xla::cpu {

/// That for the most that the processor has, or what ATEN_CPU_CAPABILITY says.
template <typename Function>
Function ForThisProcessor(Function baseline, Function avx2, Function avx512) {
  const std::string capability = at::get_cpu_capability();
  return capability == "AVX512" ? avx512 : capability == "AVX2" ? avx2 : baseline;
}

}  // namespace torch_xla::cpu
