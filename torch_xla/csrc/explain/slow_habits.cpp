#include "explain/slow_habits.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "debug/report.h"

namespace torch_xla::explain {
namespace {

// Reads or compilations are too frequent if there are as many of them as steps. This is checked
// after kSteps steps, or after kCounts reads or compilations.
constexpr int kSteps = 10;
constexpr int kCounts = 100;

class Kind {
 public:
  explicit Kind(const char* metric) : metric_(metric) {}

  void Count(const std::string& place, std::string detail) {
    Place& found = places_[place];
    ++found.count;
    found.detail = std::move(detail);
    ++count_;
  }
  bool IsFull() const { return count_ >= kCounts; }

  /// Reports if there were too many, and starts to count anew.
  void Look(int steps) {
    if (count_ > 0 && count_ >= steps) {
      const auto most = std::ranges::max_element(
          places_, {}, [](const auto& place) { return place.second.count; });
      if (told_.insert(most->first).second) {
        debug::Report(std::string("pt-xla-profiler: ") + metric_ + " too frequent: " +
                      std::to_string(count_) + " counts during " + std::to_string(steps) +
                      " steps, most of them by " + most->first + most->second.detail + "\n");
      }
    }
    places_.clear();
    count_ = 0;
  }

 private:
  struct Place {
    int count = 0;
    std::string detail;  // of the last event
  };
  const char* const metric_;
  int count_ = 0;
  std::map<std::string, Place> places_;
  std::set<std::string> told_;
};

struct Window {
  std::mutex mutex;
  int steps = 0;
  Kind reads{"TransferFromDeviceTime"}, compiles{"CompileTime"};

  void Look() {
    reads.Look(steps);
    compiles.Look(steps);
    steps = 0;
  }
};

Window& TheWindow() {
  static auto& window = *new Window;
  return window;
}

void CountIn(Kind Window::* kind, const std::string& place, std::string detail) {
  Window& window = TheWindow();
  std::lock_guard lock(window.mutex);
  (window.*kind).Count(place, std::move(detail));
  if ((window.*kind).IsFull()) window.Look();
}

}  // namespace

void NoteStepOfMany() {
  Window& window = TheWindow();
  std::lock_guard lock(window.mutex);
  if (++window.steps >= kSteps) window.Look();
}

void NoteFrequentRead(const tensor::Origin& origin) {
  CountIn(&Window::reads, origin.ToString(),
          "; keep the values on the device, and read them together every few steps");
}

void NoteFrequentCompile(const std::string& cause, const std::string& reason) {
  CountIn(&Window::compiles, cause, ", because of " + reason);
}

}  // namespace torch_xla::explain
