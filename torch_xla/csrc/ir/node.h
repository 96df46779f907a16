// The graph that tracing records: reference-counted immutable nodes.
//
// A node's hash covers its operation, its attributes and the shapes of its operands, but not which
// nodes the operands are. The executor adds the edges to the hash when it walks the graph (see
// tensor/graph.h), so that sharing of nodes is part of the hash.
#pragma once

#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <memory>
#include <utility>

#include "ir/attributes.h"
#include "ir/hash.h"
#include "ir/op.h"
#include "ir/shape.h"
#include "ir/source.h"

namespace torch_xla::ir {

class Node;

/// An owning reference to a node. Releasing the last reference frees the node and, without
/// recursion, all nodes that only it kept alive.
class NodePtr {
 public:
  NodePtr() = default;
  explicit NodePtr(Node* node);
  NodePtr(const NodePtr& other) : NodePtr(other.node_) {}
  NodePtr(NodePtr&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  NodePtr& operator=(NodePtr other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~NodePtr() {
    if (node_) Release(node_);
  }
  Node* get() const { return node_; }
  Node* operator->() const { return node_; }
  Node& operator*() const { return *node_; }
  explicit operator bool() const { return node_ != nullptr; }
  bool operator==(const NodePtr& other) const { return node_ == other.node_; }

 private:
  static void Release(Node* node);
  Node* node_ = nullptr;
};

/// One result of a node.
struct Value {
  NodePtr node;
  uint32_t index = 0;

  explicit operator bool() const { return static_cast<bool>(node); }
  bool operator==(const Value& other) const = default;
  inline ShapeRef shape() const;
};

class Node {
 public:
  using Operands = c10::SmallVector<Value, 3>;

  Node(const OpSpec* op, Operands operands, Words attributes, const OutputShapes* outputs,
       const Hash128& hash)
      : op_(op),
        outputs_(outputs),
        hash_(hash),
        operands_(std::move(operands)),
        attributes_(std::move(attributes)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const OpSpec& op() const { return *op_; }
  const Operands& operands() const { return operands_; }
  const Words& attributes() const { return attributes_; }
  const Hash128& hash() const { return hash_; }
  size_t num_outputs() const { return outputs_->shapes.size(); }
  ShapeRef shape(size_t index = 0) const { return outputs_->shapes[index]; }

  /// The object that a leaf stands for (device data); opaque to this layer.
  c10::intrusive_ptr_target* payload() const { return payload_.get(); }
  void set_payload(c10::intrusive_ptr<c10::intrusive_ptr_target> payload) {
    payload_ = std::move(payload);
  }

  /// The line of the user's program that traced the node; null if unknown.
  const SourceLocation* location() const { return location_; }
  void set_location(const SourceLocation* location) { location_ = location; }

  /// The number of NodePtrs to this node.
  uint32_t references() const { return references_.load(std::memory_order_acquire); }

  /// Releases an operand of a node that will not be read again.
  void DropOperand(size_t index) const { const_cast<Node*>(this)->operands_[index].node = {}; }

  /// Scratch fields of the single graph walk that may run at a time (exec/graph.cpp).
  struct Mark {
    uint64_t walk = 0;
    uint32_t position = 0;
    uint32_t uses = 0;  // uses within the graph, as an operand or a root
  };
  Mark& mark() const { return mark_; }

  /// Whether a program for a read has computed it already. Guarded by the lock of the graph.
  bool computed() const { return computed_; }
  void set_computed() const { computed_ = true; }

 private:
  friend class NodePtr;
  const OpSpec* op_;
  std::atomic<uint32_t> references_{0};
  mutable bool computed_ = false;
  const OutputShapes* outputs_;
  Hash128 hash_;
  mutable Mark mark_;
  Operands operands_;
  Words attributes_;
  c10::intrusive_ptr<c10::intrusive_ptr_target> payload_;
  const SourceLocation* location_ = nullptr;
};

inline NodePtr::NodePtr(Node* node) : node_(node) {
  if (node_) node_->references_.fetch_add(1, std::memory_order_relaxed);
}

inline ShapeRef Value::shape() const { return node->shape(index); }

}  // namespace torch_xla::ir
