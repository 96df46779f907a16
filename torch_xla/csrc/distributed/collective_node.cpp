#include "distributed/collective_node.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "cpu/ffi_handler.h"
#include "cpu/ffi_tensor.h"
#include "distributed/collective_ops.h"
#include "distributed/communicator.h"
#include "runtime/platform.h"
#include "tensor/device.h"
#include "tensor/node_factory.h"

namespace torch_xla::distributed {
namespace {

using namespace runtime::pjrt;
using distributed::CollectiveKind;

std::mutex token_mutex;

/// The token that the device's last collective returned. Like a tensor it is pending until a sync,
/// so the sync runs every collective, whether its results are used or not.
tensor::StoragePtr& TokenOf(int device) {
  static auto& tokens = *new std::array<tensor::StoragePtr, 256>;
  return tokens[static_cast<uint8_t>(device)];
}

ir::ShapeRef TokenShape() { return ir::GetShape(c10::ScalarType::Byte, {}); }

/// The token is a parameter from the first step on, so that the second step has the same program.
tensor::StoragePtr MakeToken(int device) {
  return c10::make_intrusive<tensor::Storage>(
      tensor::MakeLeaf(
          c10::make_intrusive<tensor::DeviceData>(TokenShape(), device, c10::Scalar(0))),
      device);
}

/// Makes one node for arrays of one dtype.
ir::NodePtr MakeNode(const distributed::Collective& collective,
                     const std::vector<ir::Value>& inputs, int device) {
  ir::Words words;
  ir::AttributeWriter writer(words);
  writer.Int(static_cast<int64_t>(inputs.size()));
  writer.IntList(distributed::Encode(collective));
  auto infer = [&] {
    ir::OutputShapes outputs;
    for (const ir::Value& input : inputs) {
      ir::ShapeRef shape = input.shape();
      outputs.shapes.push_back(
          ir::GetShape(shape->dtype, distributed::ResultDims(collective, shape->dims)));
    }
    return outputs;
  };
  return MakeOrdered(distributed::CollectiveOp(collective.kind), {inputs.begin(), inputs.end()},
                     std::move(words), infer, device);
}

void Handle(const XLA_FFI_CallFrame& frame) {
  cpu::DefaultFloatEnvironment environment;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  cpu::FfiAttributes attributes(frame.attrs);
  std::vector<at::Tensor> inputs, outputs;
  // All operands except the token.
  for (int64_t i = 0; i + 1 < frame.args.size; ++i) {
    inputs.push_back(cpu::FfiTensor(frame.args.args[i]));
    outputs.push_back(cpu::FfiTensor(frame.rets.rets[i]));
  }
  distributed::GetCommunicator()->Run(distributed::Decode(attributes.List("collective")),
                                      attributes.Text("text"), inputs, outputs);
}

// The handler needs the communicator, so cpu/table.h does not have it.
[[maybe_unused]] const bool registered = [] {
  tensor::OnClientCreated([](runtime::Client& client) {
    cpu::RegisterCpuHandler(client, distributed::kCollectiveTarget,
                            &cpu::Handler<Handle, PJRT_Error_Code_ABORTED>);
  });
  return true;
}();

}  // namespace

std::vector<ir::Value> MakeCollective(distributed::Collective collective,
                                      const std::vector<ir::Value>& inputs, int device) {
  const auto replicas = distributed::GetCommunicator();
  const std::vector<int64_t> group = collective.GroupOf(replicas->rank(), replicas->size());
  if (collective.kind == CollectiveKind::kAllGather ||
      collective.kind == CollectiveKind::kAllToAll ||
      collective.kind == CollectiveKind::kReduceScatter) {
    collective.arguments.push_back(static_cast<int64_t>(group.size()));
  }
  const bool reduces = collective.kind == CollectiveKind::kAllReduce ||
                       collective.kind == CollectiveKind::kReduceScatter;
  std::vector<c10::ScalarType> dtypes;  // in order of first appearance
  for (const ir::Value& input : inputs) {
    const c10::ScalarType dtype = input.shape()->dtype;
    if (reduces) distributed::CheckReduction(collective.reduction, dtype);
    const bool in_pairs =
        c10::isComplexType(dtype) || dtype == c10::kLong || dtype == c10::ScalarType::UInt64;
    TORCH_CHECK(!reduces || collective.reduction != distributed::Reduction::kMul || !in_pairs ||
                    !runtime::HasLongsInPairs(tensor::Platform()),
                "the reduction 'mul' over TPUs is not supported for ", dtype,
                ", which TPUs hold as pairs of 32 bits; gather the values and multiply them");
    if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) dtypes.push_back(dtype);
  }
  std::vector<ir::Value> results(inputs.size());
  for (c10::ScalarType dtype : dtypes) {
    std::vector<ir::Value> arrays;
    std::vector<size_t> positions;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].shape()->dtype != dtype) continue;
      arrays.push_back(inputs[i]);
      positions.push_back(i);
    }
    ir::NodePtr node = MakeNode(collective, arrays, device);
    for (uint32_t i = 0; i < positions.size(); ++i) results[positions[i]] = {node, i};
  }
  return results;
}

ir::NodePtr MakeOrdered(const ir::OpSpec& op, ir::Node::Operands operands, ir::Words words,
                        c10::function_ref<ir::OutputShapes()> infer, int device) {
  op.counter->Add();
  std::lock_guard lock(token_mutex);
  tensor::StoragePtr& token = TokenOf(device);
  if (!token) token = MakeToken(device);
  operands.push_back(token->value());
  ir::NodePtr node = tensor::MakeOpNode(&op, std::move(operands), std::move(words), [&] {
    ir::OutputShapes outputs = infer();
    outputs.shapes.push_back(TokenShape());
    return outputs;
  });
  token->Assign({node, static_cast<uint32_t>(node->num_outputs() - 1)});
  return node;
}

tensor::StoragePtr CollectiveToken(int device, bool make) {
  std::lock_guard lock(token_mutex);
  tensor::StoragePtr& token = TokenOf(device);
  if (!token && make) token = MakeToken(device);
  return token;
}

void RestoreCollectiveToken(int device, const std::optional<ir::Value>& before) {
  std::lock_guard lock(token_mutex);
  tensor::StoragePtr& token = TokenOf(device);
  if (!token) return;
  if (before) {
    token->Replace(token->value(), *before);
  } else {
    token = nullptr;
  }
}

bool CollectivePending(int device) {
  std::lock_guard lock(token_mutex);
  const tensor::StoragePtr& token = TokenOf(device);
  return token && !tensor::LeafData(token->value());
}

}  // namespace torch_xla::distributed
