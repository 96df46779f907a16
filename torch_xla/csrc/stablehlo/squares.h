// What a compiler has to be kept from in a module.
#pragma once

#include <string_view>

namespace torch_xla::stablehlo {

/// Whether a matrix product is multiplied with itself, perhaps laid out otherwise.
bool SquaresAProduct(std::string_view module);

}  // namespace torch_xla::stablehlo
