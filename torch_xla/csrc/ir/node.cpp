#include "ir/node.h"

#include <vector>

#include "ir/of_thread.h"

namespace torch_xla::ir {
namespace {

constinit thread_local void* dead_of_thread = nullptr;

}  // namespace

void NodePtr::Release(Node* node) {
  if (node->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // Freeing a chain of a million nodes must not need a million stack frames: inner releases only
  // queue their nodes, and the outermost release frees them. Nodes are also released while the
  // thread ends.
  auto& dead = OfThread<std::vector<Node*>>(dead_of_thread);
  static constinit thread_local bool draining = false;
  dead.push_back(node);
  if (draining) return;
  draining = true;
  while (!dead.empty()) {
    Node* next = dead.back();
    dead.pop_back();
    delete next;
  }
  draining = false;
}

}  // namespace torch_xla::ir
