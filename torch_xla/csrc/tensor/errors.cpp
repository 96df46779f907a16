#include "tensor/errors.h"

#include <c10/util/Exception.h>

#include "cpu/error_text.h"

namespace torch_xla::tensor {
namespace {

/// An out-of-memory error, with the arrays that were in memory at that time.
class OutOfMemory : public c10::OutOfMemoryError {
 public:
  OutOfMemory(c10::SourceLocation place, std::string message,
              std::function<std::string()> holders_then)
      : c10::OutOfMemoryError(place, std::move(message)), holders(std::move(holders_then)) {}
  std::function<std::string()> holders;
};

}  // namespace

std::exception_ptr AsTorchError(const runtime::Error& error, const Failed& failed) {
  const std::string place =
      failed.origin.location ? "\n  in the program of " + failed.origin.ToString() : "";
  if (error.out_of_memory()) {
    MemoryShortage shortage = Events().OutOfMemory(failed);
    return std::make_exception_ptr(OutOfMemory({__func__, __FILE__, __LINE__},
                                               error.what() + place + shortage.text,
                                               std::move(shortage.holders)));
  }
  if (std::exception_ptr thrown = cpu::FindError(error.what())) return thrown;
  return std::make_exception_ptr(runtime::Error(error.code(), error.what() + place));
}

std::exception_ptr AsTorchError(std::exception_ptr error, const Failed& failed) {
  try {
    std::rethrow_exception(error);
  } catch (const runtime::Error& plugin_error) {
    return AsTorchError(plugin_error, failed);
  } catch (...) {
    return error;
  }
}

void ThrowToUser(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory& memory) {
    if (!memory.holders) throw;
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__},
                                memory.what_without_backtrace() + memory.holders());
  }
}

}  // namespace torch_xla::tensor
