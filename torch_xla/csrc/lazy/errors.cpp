#include "lazy/errors.h"

#include <c10/util/Exception.h>

namespace torch_xla::lazy {
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

// The last one is the base of the others.
constexpr ErrorClass kClasses[] = {
    Class<c10::LinAlgError>("LinAlgError"),
    Class<c10::IndexError>("IndexError"),
    Class<c10::ValueError>("ValueError"),
    Class<c10::TypeError>("TypeError"),
    Class<c10::NotImplementedError>("NotImplementedError"),
    Class<c10::OutOfMemoryError>("OutOfMemoryError"),
    Class<c10::Error>("Error"),
};

class OutOfMemory : public c10::OutOfMemoryError {
 public:
  OutOfMemory(c10::SourceLocation place, std::string message,
              std::function<std::string()> holders_then)
      : c10::OutOfMemoryError(place, std::move(message)), holders(std::move(holders_then)) {}
  std::function<std::string()> holders;
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

std::exception_ptr AsTorchError(const runtime::Error& error, const Failed& failed) {
  const std::string place =
      failed.origin.location ? "\n  in the program of " + failed.origin.ToString() : "";
  if (error.out_of_memory()) {
    MemoryShortage shortage = Events().OutOfMemory(failed);
    return std::make_exception_ptr(OutOfMemory({__func__, __FILE__, __LINE__},
                                               error.what() + place + shortage.text,
                                               std::move(shortage.holders)));
  }
  const std::string_view text = error.what();
  const size_t begin = text.find(kBegin), end = text.rfind(kEnd);
  if (begin != text.npos && end != text.npos) {
    const size_t name = begin + kBegin.size(), close = text.find('>', name);
    for (const ErrorClass& known : kClasses) {
      if (text.substr(name, close - name) != known.name) continue;
      return known.make(std::string(text.substr(close + 1, end - close - 1)));
    }
  }
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
    std::rethrow_exception(
        Make<c10::OutOfMemoryError>(memory.what_without_backtrace() + memory.holders()));
  }
}

}  // namespace torch_xla::lazy
