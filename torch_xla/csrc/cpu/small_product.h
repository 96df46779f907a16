// Products of matrices of float that are in the caches, on the thread that asks for them. (MKL
// packs its factors into buffers of megabytes, which each thread keeps, and is slow to few
// columns.)
#pragma once

#include <cstdint>
#include <memory>

namespace torch_xla::cpu {

/// What a product reads or writes, not initialized.
using Floats = std::unique_ptr<float[]>;
inline Floats Scratch(int64_t count) { return std::make_unique_for_overwrite<float[]>(count); }

/// c [rows, columns] = a [rows, terms] b [terms, columns], of ProductLanes() columns at least.
/// Element (i, l) of a is at i * a_row + l * a_term, one of which is 1; columns of b and c are side
/// by side.
struct SmallProduct {
  const float* a;
  int64_t a_row, a_term;
  const float* b;
  int64_t b_term;
  float* c;
  int64_t c_row;
  int64_t rows, columns, terms;
  /// Adds to what c is; then columns are a multiple of ProductLanes().
  bool adds = false;
  /// If not 0, b is panels of PanelWidth() columns, so far apart: see PackPanel().
  int64_t b_panel = 0;
};

void Multiply(const SmallProduct& product);

/// Floats in a vector of this processor.
int64_t ProductLanes();
/// Vectors that so many floats take.
inline int64_t InVectors(int64_t count) { return (count + ProductLanes() - 1) / ProductLanes(); }

inline int64_t PanelWidth() { return 2 * ProductLanes(); }
inline int64_t InPanels(int64_t columns) { return (columns + PanelWidth() - 1) / PanelWidth(); }
/// The first of the columns, at least PanelWidth(), in a panel: the last overlaps the one before.
inline int64_t PanelBegin(int64_t panel, int64_t columns) {
  const int64_t begin = panel * PanelWidth(), last = columns - PanelWidth();
  return begin < last ? begin : last;
}

/// Writes a panel [terms, PanelWidth()] of what lies transposed, `from` [PanelWidth(), terms] with
/// rows `stride` apart, of which as many floats as there are in whole vectors of terms are read.
void PackPanel(const float* from, int64_t stride, int64_t terms, float* panel);

}  // namespace torch_xla::cpu
