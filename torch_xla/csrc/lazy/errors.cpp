#include "lazy/errors.h"

#include <c10/util/Exception.h>

namespace torch_xla::lazy {

std::exception_ptr AsTorchError(const runtime::Error& error) {
  if (!error.out_of_memory()) return std::make_exception_ptr(error);
  return std::make_exception_ptr(
      c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what()));
}

std::exception_ptr AsTorchError(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const runtime::Error& plugin_error) {
    return AsTorchError(plugin_error);
  } catch (...) {
    return error;
  }
}

}  // namespace torch_xla::lazy
