// Errors in files. Their text names the file and the position in it.
#pragma once

#include <stdexcept>

namespace torch_xla::data {

class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace torch_xla::data
