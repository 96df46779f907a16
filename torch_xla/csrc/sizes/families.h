// One program for many sizes: a graph whose structure was seen with other sizes becomes one whose
// arrays have the sizes of their buckets (sizes/bounded_graph.h). The host pads inputs before the
// program, and takes the elements that count out of its results.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sizes/binding.h"

namespace torch_xla::sizes {

/// What became of the sizes of a graph.
struct SizesNote {
  std::string text;
  const ir::SourceLocation* location = nullptr;  // of the node that keeps them from varying
};

/// A graph in the sizes of its bucket.
struct BoundedProgram {
  tensor::Graph graph;
  std::vector<int> aliases;
  std::unique_ptr<BoundedGraph> rewritten;
};

/// Returns nothing if sizes are not arguments (XLA_DYNAMIC_SIZES), if the structure is new, if no
/// input's size differs from the first one's, if an operation has no rule, or if there is a note
/// already. `note` says what became of the sizes. `aliases` are those of the graph's program.
/// Counter DynamicSizesRefused.
std::optional<BoundedProgram> BoundGraph(const tensor::Graph& graph, int device,
                                         const tensor::DeviceSet* devices,
                                         const std::vector<int>& aliases, SizesNote& note);

/// Keeps how graphs of this key run as `program`, that of `bulk`. Throws if they cannot. Counters
/// as Use, and DynamicSizesBound.
std::shared_ptr<const Binding> Bind(const ir::Hash128& key, const ir::Hash128& program,
                                    const tensor::Graph& graph, int device,
                                    const tensor::DeviceSet* devices, const BoundedGraph& bounded,
                                    const tensor::Graph& bulk);

/// How a graph runs as a program that was made before; no rewriting is needed.
struct Bound {
  std::shared_ptr<const Binding> binding;
  ir::Hash128 program;
  debug::Counter* runs;
};
/// Returns nothing if the graph was not seen, or if its sizes shall have a program of their own;
/// `note` then says why.
std::optional<Bound> FindBound(const ir::Hash128& key, const tensor::Graph& graph, SizesNote& note);
/// Counts a run. Counters DynamicSizes and one of the program, metric DynamicSizesPadding.
std::shared_ptr<const Binding> Use(const Bound& bound);

/// Notes that the program of a bounded graph could not be made: it and others of its structure are
/// not bounded again. Returns the note that says why.
SizesNote RefuseBounds(const tensor::Graph& graph, const SizesNote& reason);

/// Forgets all structures and how their sizes ran.
void ForgetSizes();

/// While a thread makes a program: what became of the sizes of its graph. An empty note leaves that
/// of the outer scope.
class SizesScope {
 public:
  explicit SizesScope(const SizesNote& note);
  ~SizesScope();
  SizesScope(const SizesScope&) = delete;
  SizesScope& operator=(const SizesScope&) = delete;

 private:
  const SizesNote* outer_;
};
/// The note of the innermost scope; null if there is none.
const SizesNote* CurrentSizes();

/// Notes that a size of some data is at most `bound`: torch_xla.mark_dynamic.
void MarkSize(const tensor::DeviceDataPtr& data, size_t dim, int64_t bound);

}  // namespace torch_xla::sizes
