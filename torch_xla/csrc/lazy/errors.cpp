#include "lazy/errors.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "lazy/device.h"
#include "lazy/explain.h"
#include "lazy/memory_report.h"

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

std::atomic<HoldersFunction> holders{nullptr};

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

std::exception_ptr AsTorchError(const runtime::Error& error, const Origin& origin,
                                int64_t program) {
  const std::string place = origin.location ? "\n  in the program of " + origin.ToString() : "";
  if (error.out_of_memory()) {
    std::string need;
    for (const Explanation& explanation : Explanations(program - 1, SIZE_MAX)) {
      if (explanation.number != program) continue;
      need = "\n  which needs " + MemoryText(explanation.memory);
      const std::string advice = MicrobatchText(explanation.memory, GetClient().memory(0));
      if (!advice.empty()) need += "\n" + advice;
    }
    return Make<c10::OutOfMemoryError>(error.what() + place + need + "\n" + MemoryReport(10));
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

std::exception_ptr AsTorchError(std::exception_ptr error, const Origin& origin, int64_t program) {
  try {
    std::rethrow_exception(error);
  } catch (const runtime::Error& plugin_error) {
    return AsTorchError(plugin_error, origin, program);
  } catch (...) {
    return error;
  }
}

void SetHoldersFunction(HoldersFunction function) { holders.store(function); }

void ThrowToUser(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError& memory) {
    const HoldersFunction function = holders.load();
    if (!function) throw;
    std::rethrow_exception(
        Make<c10::OutOfMemoryError>(memory.what_without_backtrace() + function()));
  }
}

}  // namespace torch_xla::lazy
