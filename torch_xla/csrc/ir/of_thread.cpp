#include "ir/of_thread.h"

#include <utility>
#include <vector>

namespace torch_xla::ir {
namespace {

constinit thread_local bool has_ended = false;

struct End {
  struct Step {
    void** slot;
    void (*destroy)(void*);
  };
  std::vector<Step> steps;

  ~End() {
    has_ended = true;
    for (const Step& step : steps) step.destroy(std::exchange(*step.slot, nullptr));
  }
};

}  // namespace

void AtThreadEnd(void** slot, void (*destroy)(void*)) {
  // Other destructors of the thread may run later and ask for their objects again; these leak.
  if (has_ended) return;
  thread_local End end;
  end.steps.push_back({slot, destroy});
}

}  // namespace torch_xla::ir
