#include "cpu/error_text.h"

#include <c10/util/Exception.h>

#include <iterator>
#include <utility>

namespace torch_xla::cpu {
namespace {

template <typename E>
std::exception_ptr Make(std::string message) {
  return std::make_exception_ptr(
      E({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(message)));
}

template <typename E>
bool Is(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

struct ErrorClass {
  std::string_view name;
  bool (*is)(const std::exception&);
  std::exception_ptr (*make)(std::string);
};

template <typename E>
constexpr ErrorClass Class(std::string_view name) {
  return {name, &Is<E>, &Make<E>};
}

// The last class is the base of the others.
constexpr ErrorClass kClasses[] = {
    Class<c10::LinAlgError>("LinAlgError"),
    Class<c10::IndexError>("IndexError"),
    Class<c10::ValueError>("ValueError"),
    Class<c10::TypeError>("TypeError"),
    Class<c10::NotImplementedError>("NotImplementedError"),
    Class<c10::OutOfMemoryError>("OutOfMemoryError"),
    Class<c10::Error>("Error"),
};

constexpr std::string_view kBegin = "<torch.", kEnd = "</torch>";

}  // namespace

std::string ErrorText(const std::exception& error) {
  auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string_view name = std::rbegin(kClasses)->name;
  for (const ErrorClass& known : kClasses) {
    if (!known.is(error)) continue;
    name = known.name;
    break;
  }
  std::string text(kBegin);
  text.append(name).append(">");
  text += torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.append(kEnd);
}

std::exception_ptr FindError(std::string_view message) {
  const size_t begin = message.find(kBegin), end = message.rfind(kEnd);
  if (begin == message.npos || end == message.npos) return nullptr;
  const size_t name = begin + kBegin.size(), close = message.find('>', name);
  for (const ErrorClass& known : kClasses) {
    if (message.substr(name, close - name) != known.name) continue;
    return known.make(std::string(message.substr(close + 1, end - close - 1)));
  }
  return nullptr;
}

}  // namespace torch_xla::cpu
