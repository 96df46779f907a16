// Functions that are compiled for several instruction sets. The package is built for any processor
// of the architecture, so one version is chosen at run time.
#pragma once

#include <ATen/Version.h>

#include <string>

// Code that is inlined into a function with such an attribute is compiled for its instruction set.
// Other architectures than x86-64 have the baseline only.
#if defined(__x86_64__) && defined(__linux__)
#define TORCH_XLA_AVX2 __attribute__((target("avx2,fma")))
#define TORCH_XLA_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx2,fma")))
#else
#define TORCH_XLA_AVX2
#define TORCH_XLA_AVX512
#endif

namespace torch_xla::cpu {

/// The value for the best instruction set of this processor, or for ATEN_CPU_CAPABILITY.
template <typename T>
T ChooseForProcessor(T baseline, T avx2, T avx512) {
  const std::string capability = at::get_cpu_capability();
  return capability == "AVX512" ? avx512 : capability == "AVX2" ? avx2 : baseline;
}

template <auto kBaseline, auto kAvx2 = kBaseline, auto kAvx512 = kBaseline>
struct Versions;
template <typename Result, typename... Args, Result (*kBaseline)(Args...), Result (*kAvx2)(Args...),
          Result (*kAvx512)(Args...)>
struct Versions<kBaseline, kAvx2, kAvx512> {
  static Result Baseline(Args... args) { return kBaseline(args...); }
  TORCH_XLA_AVX2 static Result Avx2(Args... args) { return kAvx2(args...); }
  TORCH_XLA_AVX512 static Result Avx512(Args... args) { return kAvx512(args...); }
};

/// The version of a function for this processor. The function must be always inlined. It may be
/// given three times, for vectors of the length that each instruction set has.
template <auto... kFunctions>
auto ForThisProcessor() {
  using All = Versions<kFunctions...>;
  static const auto best = ChooseForProcessor(&All::Baseline, &All::Avx2, &All::Avx512);
  return best;
}

}  // namespace torch_xla::cpu
