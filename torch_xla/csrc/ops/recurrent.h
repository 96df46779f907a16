// Recurrent layers: LSTM, GRU and the plain cells with tanh or relu, over all times of a sequence.
//
// A layer and direction is one node, and its gradient is another one, so neither the program nor
// its compile time grow with the length of the sequence. The share of the input in the gates (its
// product with weight_ih, plus the bias) is computed by ordinary operators for all times at once.
#pragma once

#include <cstdint>

namespace torch_xla {

/// The kind of a cell with H numbers of state. Each of its gates has H numbers: in, forget, cell
/// and out for an LSTM; reset, update and new for a GRU.
enum class Cell : int64_t { kLstm, kGru, kTanh, kRelu };

constexpr int64_t NumGates(Cell cell) {
  return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1;
}

// The results of xla::recurrent for T times and N samples:
//   output  [T, N, H]
//   last    [N, H], LSTM: the cells after the last time
// and, with `keeps`, values for the gradient:
//   gates   [T, N, 4 H], LSTM and GRU: the activated gates. LSTM: in, forget, cell, out.
//           GRU: reset, update, new, and the product by which the reset gate is multiplied.
//   cells   [T, N, H], LSTM: the cells after each time
// xla::recurrent_backward takes the output and the kept values. Its results are gradients:
//   gates   [T, N, G]: of the share of the input in the gates
//   hidden  [N, H]: of the state before the first time
//   cells   [N, H], LSTM: of the cells before the first time
//   products  [T, N, 3 H], GRU: of the products of the hidden states

}  // namespace torch_xla
