// Finds patterns in a module that crash a compiler.
#pragma once

#include <string_view>

namespace torch_xla::stablehlo {

/// Whether a matrix product is multiplied with itself by another product, possibly in another
/// layout.
bool SquaresAProduct(std::string_view module);

}  // namespace torch_xla::stablehlo
