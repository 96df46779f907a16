// Chooses the implementation of an operation for a platform and a kind of shapes, from one table,
// kernel_table.inc, which benchmarks/kernels.py measures.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lowering/context.h"
#include "lowering/may_call.h"

namespace torch_xla::lowering {

enum class Kernel {
  kStableHlo,    // the operation of StableHLO
  kProduct,      // made of a matrix product
  kElementwise,  // made of elementwise operations
  kLibrary,      // a call of ATen's kernel, or one of ours, on the device's memory
  kFewRows,      // the same of ours for a few rows (cpu/few_rows.cpp)
  kCudnn,        // a call of cuDNN's kernel, which XLA's plugin makes
};

/// The implementation of `operation` for the program that `cx` lowers, one of `possible`. `kind`
/// describes its shapes with a word for each column of the table. The first row that matches
/// decides; without a match it is the first of `possible`. Rows whose library the program must not
/// call are skipped (MayCallLibraries). `XLA_KERNELS="operation=implementation,…"` puts rows before
/// the table, for measurements.
Kernel ChooseKernel(const LoweringContext& cx, std::string_view operation,
                    std::initializer_list<std::string_view> kind,
                    const std::vector<Kernel>& possible);

/// Whether that is a call of a library, where the other choice is StableHLO.
bool ChoosesLibrary(const LoweringContext& cx, std::string_view operation,
                    std::initializer_list<std::string_view> kind = {});

/// The choices made for the programs of this process: operation, kind, implementation.
std::set<std::tuple<std::string, std::string, std::string>> KernelChoices();

}  // namespace torch_xla::lowering
