// Loops on the device. A loop is text in the graph; what its functions were traced to is kept
// beside the text, so that a graph with the loop can be rewritten for other sizes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/node.h"

namespace torch_xla::sizes {

/// A function that a loop calls, as the graph that it was traced to. It holds no array.
struct LoopFunction {
  std::vector<const ir::Node*> nodes;  // its parameters, then the others, operands before users
  std::vector<ir::Value> parameters, outputs;
  /// Makes the text of such a function of other sizes. It has more parameters, in `numbers`.
  std::string (*lower)(const std::vector<ir::Value>& parameters,
                       const std::vector<ir::Value>& outputs, std::vector<ir::Value>& numbers);
};

/// What the text of a loop is made of.
struct LoopForm {
  struct Callee {
    std::string text;
    std::vector<size_t> operands;  // of the loop, one for each parameter
    std::vector<int64_t> seeds;    // for each parameter whether it is a seed, or -1
  };
  // The first operands are carried from turn to turn. The sliced ones have an element for each
  // turn. The others are the same in all turns.
  size_t carries, sliced;
  // The body returns the next carries, elements that are stacked, and as its last results `sums`
  // terms. The loop's results are the last carries, the stacks and the sums.
  size_t sums;
  int64_t length;               // of stacks, and of the loop if it has no condition
  bool reverse;                 // whether the last elements come first
  std::vector<Callee> callees;  // the body; the condition, if there is one
  int64_t length_operand = -1;  // the operand that is the number of turns, or -1: it is `length`
};

struct Loop {
  LoopForm form;
  std::vector<std::shared_ptr<const LoopFunction>> functions;  // of the callees
  std::string (*text)(const LoopForm& form, const std::vector<ir::ShapeRef>& operands);
};

/// Keeps the function or the loop of a text. At worst a loop is forgotten: it then keeps its sizes.
void KeepFunction(const std::string& text, LoopFunction function);
void KeepLoop(const std::string& text, Loop loop);
/// The loop that a node's text is; null if it is none, or is not known.
std::shared_ptr<const Loop> FindLoop(const ir::Node& node);

/// A leaf without data.
ir::Value LoopParameter(ir::ShapeRef shape);
/// The node with other operands of the same shapes.
ir::NodePtr WithOperands(const ir::Node& node, ir::Node::Operands operands);

}  // namespace torch_xla::sizes
