#include "exec/may_cut.h"

#include <c10/util/Exception.h>

#include <utility>

namespace torch_xla::exec {
namespace {

thread_local std::optional<std::string> forbidden;

}  // namespace

std::optional<std::string> ForbidCuts(std::optional<std::string> why) {
  return std::exchange(forbidden, std::move(why));
}

bool MayCut() { return !forbidden; }

void CheckMayCut() {
  TORCH_CHECK(!forbidden, *forbidden,
              ": the graph would be cut here, by reading a tensor (item(), cpu(), print, an "
              "operator that runs on the CPU) or by a sync");
}

}  // namespace torch_xla::exec
