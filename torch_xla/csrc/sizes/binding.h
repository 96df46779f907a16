// How cuts of one exact key run as the program of their bucket (sizes/families.h).
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "sizes/bounded_graph.h"
#include "tensor/host_edges.h"

namespace torch_xla::sizes {

/// Holds no array and no node of a user's graph. Only its count of runs changes once it is kept.
class Binding {
 public:
  /// The binding of cuts with the graph `exact`, which was rewritten to `bulk`; their numbers are
  /// packed. Padding gets the value of `padding_of`.
  Binding(const tensor::Graph& exact, int device, const tensor::DeviceSet* devices,
          const BoundedGraph& bounded, const tensor::Graph& bulk,
          c10::Scalar (*padding_of)(c10::ScalarType dtype));

  /// Whether this cut's arrays have the sizes, and the numbers among its attributes the values, of
  /// the cut that the binding was made from. All else is part of the exact key.
  bool Fits(const tensor::Graph& graph) const;
  /// Gives an execution of a cut the inputs, numbers, results and host operations of the bucket's
  /// program.
  void Apply(tensor::Arguments& execution, int device, const tensor::DeviceSet* devices) const;
  /// How much of the inputs is padding, in percent.
  double padding() const { return padding_; }
  /// Whether these sizes shall have a program of their own: they came often, and the bucket's
  /// program spends much of its time on padding or on taking results apart.
  bool GivesWay() const { return gives_way_.load(std::memory_order_relaxed); }
  /// Whether the program takes the memory of an input of the cut.
  bool IsDonated(size_t input, const std::vector<int>& aliases) const;

 private:
  /// The packed numbers of one kind: copied from the cut, or constants of its sizes.
  template <typename T>
  struct Numbers {
    std::vector<std::pair<T, int32_t>> values;  // with the index in the cut's numbers, or -1
    size_t first_attribute = 0;
    std::vector<T> attributes;  // of the cut
    bool Fits(const std::vector<T>& given) const;
    std::vector<T> Of(const std::vector<T>& given) const;
  };
  struct Pad {
    size_t input;  // of the cut
    ir::Value leaf, padded;
  };
  struct Part {
    size_t output, whole;  // of the cut; of the program
    ir::Value leaf, part, result;
  };
  void TakeNumbers(const tensor::Graph& exact, const BoundedGraph& bounded,
                   const tensor::Graph& bulk);

  // Of the cut: the parameters with their marked bounds.
  std::vector<std::pair<ir::ShapeRef, ir::ShapeRef>> parameters_;
  std::vector<ir::ShapeRef> roots_;
  std::vector<int64_t> inputs_;  // indices of the cut's inputs, or ~ those of pads
  std::vector<Pad> pads_;
  std::vector<std::pair<int64_t, ir::ShapeRef>> outputs_;  // the cut's output, or -1 and a shape
  std::vector<Part> parts_;
  Numbers<double> floats_;
  Numbers<int64_t> integers_;
  double padding_;
  std::shared_ptr<std::atomic<int>> exact_;
  mutable std::atomic<int> runs_{0};
  mutable std::atomic<bool> gives_way_{false};
};

}  // namespace torch_xla::sizes
