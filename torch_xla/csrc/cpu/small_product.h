// Products of float matrices that are in the caches, computed on the calling thread. MKL would pack
// its factors into buffers of megabytes, which each thread keeps, and is slow if the result has few
// columns.
#pragma once

#include <cstdint>
#include <memory>

namespace torch_xla::cpu {

/// Uninitialized floats.
using Floats = std::unique_ptr<float[]>;
inline Floats Scratch(int64_t count) { return std::make_unique_for_overwrite<float[]>(count); }

/// c [rows, columns] = a [rows, terms] times b [terms, columns], with at least ProductLanes()
/// columns. Element (i, l) of a is at i * a_row + l * a_term; one of these strides is 1. The
/// columns of b and c are side by side.
struct SmallProduct {
  const float* a;
  int64_t a_row, a_term;
  const float* b;
  int64_t b_term;
  float* c;
  int64_t c_row;
  int64_t rows, columns, terms;
  /// Adds the product to c; then `columns` must be a multiple of ProductLanes().
  bool adds = false;
  /// If not 0, b consists of panels of PanelWidth() columns, b_panel floats apart (PackPanel()).
  int64_t b_panel = 0;
};

void Multiply(const SmallProduct& product);

/// How many floats a vector of this processor has.
int64_t ProductLanes();
/// How many vectors `count` floats take.
inline int64_t InVectors(int64_t count) { return (count + ProductLanes() - 1) / ProductLanes(); }

inline int64_t PanelWidth() { return 2 * ProductLanes(); }
inline int64_t InPanels(int64_t columns) { return (columns + PanelWidth() - 1) / PanelWidth(); }
/// The first column of a panel. The last panel may overlap the one before it.
inline int64_t PanelBegin(int64_t panel, int64_t columns) {
  const int64_t begin = panel * PanelWidth(), last = columns - PanelWidth();
  return begin < last ? begin : last;
}

/// Transposes `from` [PanelWidth(), terms], whose rows are `stride` floats apart, to a panel
/// [terms, PanelWidth()]. Reads whole vectors of each row.
void PackPanel(const float* from, int64_t stride, int64_t terms, float* panel);

}  // namespace torch_xla::cpu
