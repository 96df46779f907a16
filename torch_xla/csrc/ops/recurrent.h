// Recurrent layers: LSTM, GRU and the plain cells with tanh or relu, over all times of a sequence.
//
// One node for a layer and a direction, and one for its gradient, so that neither the program nor
// its compile grow with the length of the sequence. What the input alone gives (`gates`: its
// product with weight_ih, and the bias) is a product of ordinary operators, for all times at once.
#pragma once

#include <cstdint>

namespace torch_xla {

/// With H numbers of state, a cell has this many gates of H numbers each: LSTM's in, forget, cell
/// and out; GRU's reset, update and new.
enum class Cell : int64_t { kLstm, kGru, kTanh, kRelu };

constexpr int64_t NumGates(Cell cell) {
  return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1;
}

// Results of xla::recurrent, of T times and N samples:
//   output  [T, N, H]
//   last    [N, H], LSTM: the cells after the last time
// and with `keeps`, for its gradient:
//   gates   [T, N, 4 H], LSTM and GRU: as they were applied. LSTM: in, forget, cell, out.
//           GRU: reset, update, new, and what of the new one's argument reset is multiplied with.
//   cells   [T, N, H], LSTM: after each time
// Operands of xla::recurrent_backward: output and what is kept. Its results:
//   gates   [T, N, G]: gradients of what the input gave
//   hidden  [N, H]: of the state before the first time
//   cells   [N, H], LSTM: of the cells before the first time
//   products  [T, N, 3 H], GRU: of the hidden states' products

}  // namespace torch_xla
