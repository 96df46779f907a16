// Records collectives among the replicas, in a single order for each device.
#pragma once

#include <c10/util/FunctionRef.h>

#include <optional>
#include <vector>

#include "distributed/collective.h"
#include "ir/node.h"
#include "tensor/storage.h"

namespace torch_xla::distributed {

/// Returns the results of a collective over arrays on `device`. all_reduce and broadcast accept any
/// number of arrays of any dtypes, the other collectives a single array. The replicas must be
/// connected. The size of a group is appended to the arguments of collectives that have it.
std::vector<ir::Value> MakeCollective(distributed::Collective collective,
                                      const std::vector<ir::Value>& inputs, int device);

/// Makes a node that reads the token of `device` after the operands, and whose last result, which
/// `infer` leaves out, is the next token. The node runs in the order of the tokens, whether another
/// node reads its results or not. Each use of the token is a use of the whole order: collectives
/// and calls of the host.
ir::NodePtr MakeOrdered(const ir::OpSpec& op, ir::Node::Operands operands, ir::Words words,
                        c10::function_ref<ir::OutputShapes()> infer, int device);

/// Whether a collective on `device` has been traced but not launched yet.
bool CollectivePending(int device);

/// The token of `device`, which each collective reads and writes, so that collectives stay in
/// order. Null before the first collective, unless `make` is set.
tensor::StoragePtr CollectiveToken(int device, bool make = false);

/// Undoes all collectives that were traced since the token had the value `before`, or since there
/// was no token if `before` is empty.
void RestoreCollectiveToken(int device, const std::optional<ir::Value>& before);

}  // namespace torch_xla::distributed
