// Recurrent layers: LSTM, GRU and the plain cells with tanh or relu, over all times of a sequence.
//
// Each direction of a layer is one node, and its gradient is another node. Hence neither the
// program nor its compile time grows with the length of the sequence. Ordinary operators compute
// the input's share of the gates, which is the input's product with weight_ih plus the bias, for
// all times at once.
#pragma once

#include <cstdint>

namespace torch_xla {

/// The kind of a cell whose state has H numbers. Each of the cell's gates has H numbers, too. The
/// gates of an LSTM are in, forget, cell and out; those of a GRU are reset, update and new.
enum class Cell : int64_t { kLstm, kGru, kTanh, kRelu };

/// Returns the number of gates of a cell.
constexpr int64_t NumGates(Cell cell) {
  return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1;
}

// xla::recurrent has these results for T times and N samples:
//   output  [T, N, H]
//   last    [N, H], only LSTM: the cells after the last time
// With `keeps` it also has these results, which the gradient reads:
//   gates   [T, N, 4 H], only LSTM and GRU: the activated gates. For an LSTM these are in, forget,
//           cell and out. For a GRU these are reset, update, new, and the product by which the
//           reset gate is multiplied.
//   cells   [T, N, H], only LSTM: the cells after each time
// xla::recurrent_backward takes the output and the kept values. It has these results:
//   gates   [T, N, G]: the gradient of the input's share of the gates
//   hidden  [N, H]: the gradient of the state before the first time
//   cells   [N, H], only LSTM: the gradient of the cells before the first time
//   products  [T, N, 3 H], only GRU: the gradient of the products of the hidden states

}  // namespace torch_xla
