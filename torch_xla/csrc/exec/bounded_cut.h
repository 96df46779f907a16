// One program for many sizes: a cut whose structure was seen with other sizes becomes a cut whose
// arrays have the sizes of their buckets (exec/bounded_graph.h). The host pads inputs before the
// program, and takes the elements that count out of its results.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/bounded_binding.h"

namespace torch_xla::lazy {

/// What became of the sizes of a graph.
struct SizesNote {
  std::string text;
  const ir::SourceLocation* location = nullptr;  // of the node that keeps them from varying
};

/// A cut's graph in the sizes of its bucket, for the lowering.
struct BoundedCut {
  Cut cut;
  std::vector<int> aliases;
  std::unique_ptr<BoundedGraph> rewritten;
};

/// Returns nothing if sizes are not arguments (XLA_DYNAMIC_SIZES), if the structure is new, if no
/// input's size differs from the first one's, if an operation has no rule, or if there is a note
/// already. `note` says what became of the sizes. `aliases` are those of the cut. Counter
/// DynamicSizesRefused.
std::optional<BoundedCut> BoundCut(const Cut& cut, const std::vector<int>& aliases,
                                   SizesNote& note);

/// Keeps how cuts of this key run as `program`, and makes `cut` one. Throws if it cannot. Counters
/// as Use, and DynamicSizesBound.
void Bind(const ir::Hash128& key, const ir::Hash128& program, Cut& cut, const BoundedCut& bounded);

/// How this cut runs as a program that was made before; no rewriting is needed.
struct Bound {
  std::shared_ptr<const Binding> binding;
  ir::Hash128 program;
  debug::Counter* runs;
};
/// Returns nothing if the cut was not seen, or if its sizes shall have a program of their own;
/// `note` then says why.
std::optional<Bound> FindBound(const ir::Hash128& key, const Cut& cut, SizesNote& note);
/// Makes the cut one of its bucket. Counters DynamicSizes and one of the program, metric
/// DynamicSizesPadding.
void Use(const Bound& bound, Cut& cut);

/// Notes that the program of a bounded cut could not be made: `cut` and others of its structure are
/// not bounded again. Returns the note that says why.
SizesNote RefuseBounds(const Cut& cut, const SizesNote& reason);

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
void MarkSize(const DeviceDataPtr& data, size_t dim, int64_t bound);

}  // namespace torch_xla::lazy
