#include "runtime/errors.h"

#include <array>

namespace torch_xla::runtime {

bool Error::out_of_memory() const { return code_ == pjrt::PJRT_Error_Code_RESOURCE_EXHAUSTED; }

bool Error::refused() const {
  return code_ == pjrt::PJRT_Error_Code_INVALID_ARGUMENT ||
         code_ == pjrt::PJRT_Error_Code_UNIMPLEMENTED;
}

std::string_view ErrorCodeName(int code) {
  static constexpr std::array<std::string_view, 17> kNames = {"OK",
                                                              "CANCELLED",
                                                              "UNKNOWN",
                                                              "INVALID_ARGUMENT",
                                                              "DEADLINE_EXCEEDED",
                                                              "NOT_FOUND",
                                                              "ALREADY_EXISTS",
                                                              "PERMISSION_DENIED",
                                                              "RESOURCE_EXHAUSTED",
                                                              "FAILED_PRECONDITION",
                                                              "ABORTED",
                                                              "OUT_OF_RANGE",
                                                              "UNIMPLEMENTED",
                                                              "INTERNAL",
                                                              "UNAVAILABLE",
                                                              "DATA_LOSS",
                                                              "UNAUTHENTICATED"};
  return code >= 0 && static_cast<size_t>(code) < kNames.size() ? kNames[code] : "UNKNOWN";
}

Error MakeError(pjrt::PJRT_Error_Code code, std::string_view what, std::string_view reason) {
  std::string message(what);
  message.append(" (").append(ErrorCodeName(code)).append("): ").append(reason);
  return Error(code, message);
}

Error InvalidArgument(const std::string& message) {
  return Error(pjrt::PJRT_Error_Code_INVALID_ARGUMENT, message);
}

}  // namespace torch_xla::runtime
