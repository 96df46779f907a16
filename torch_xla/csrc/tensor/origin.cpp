#include "tensor/origin.h"

namespace torch_xla::tensor {
namespace {

constinit thread_local Origin scope;
ReaderFunction reader_function = nullptr;

}  // namespace

std::string Origin::ToString() const {
  std::string text = cause ? cause : "the value of a tensor";
  if (detail) text.append(" ").append(detail);
  if (location) text += " at " + location->ToString();
  return text;
}

CauseScope::CauseScope(const char* cause, const char* detail) : outermost_(!scope.cause) {
  if (outermost_) scope = {cause, detail, nullptr};
}

CauseScope::~CauseScope() {
  if (outermost_) scope = {};
}

void SetReaderFunction(ReaderFunction function) { reader_function = function; }

Origin CurrentOrigin() {
  const char* cause = scope.cause;
  // Printing a tensor reads single elements; the reader function finds that out.
  if (reader_function) {
    if (const char* reader = reader_function()) cause = reader;
  }
  return {cause, scope.detail, ir::CurrentLocation()};
}

}  // namespace torch_xla::tensor
