#include "exec/cut_log.h"

#include <bit>
#include <unordered_map>
#include <utility>

#include "XLAOps.h"
#include "exec/transfer.h"
#include "tensor/node_factory.h"

namespace torch_xla::exec {
namespace {

constinit thread_local CutLog* recorder_of_thread = nullptr;

}  // namespace

CutLog* SetCutLog(CutLog* recorder) { return std::exchange(recorder_of_thread, recorder); }

CutLog* CurrentCutLog() { return recorder_of_thread; }

void NoteReadSlow() {
  CutLog& recorder = *recorder_of_thread;
  if (!recorder.closing) recorder.reads.push_back(tensor::CurrentOrigin());
}

void CollectContents(const CutLog& recorder, RecordedCut& cut) {
  // The contents of larger inputs are not compared with those of later calls.
  constexpr int64_t kMaxElements = 1 << 14;
  cut.contents.resize(cut.inputs.size());
  for (size_t i = 0; i < cut.inputs.size(); ++i) {
    tensor::DeviceData& data = *cut.inputs[i];
    if (data.id() < recorder.first_data || data.pending()) continue;
    if (data.shape()->numel <= kMaxElements) cut.contents[i] = ToHost(data);
  }
}

void CollectNumbers(const tensor::Graph& graph, RecordedCut& cut) {
  int32_t next_float = 0, next_integer = 0;
  size_t next_data = 0;
  // A number has no line of its own, so use the line of the operation that takes it.
  std::unordered_map<const ir::Node*, const ir::SourceLocation*> lines;
  for (const ir::Node* node : graph.order) {
    for (const ir::Value& operand : node->operands()) {
      if (operand.node->operands().empty()) lines.try_emplace(operand.node.get(), node->location());
    }
  }
  auto add_packed = [&](const c10::Scalar& value, const ir::SourceLocation* location) {
    auto add_float = [&](double number) {
      cut.numbers.push_back({std::bit_cast<uint64_t>(number), true, next_float++, location});
    };
    if (value.isComplex()) {
      add_float(value.toComplexDouble().real());
      add_float(value.toComplexDouble().imag());
    } else if (value.isFloatingPoint()) {
      add_float(value.toDouble());
    } else {
      cut.numbers.push_back(
          {static_cast<uint64_t>(ir::IntegerBits(value)), false, next_integer++, location});
    }
  };
  for (const ir::Node* node : graph.order) {
    if (&node->op() == &ir::ops::device_data) {
      const auto* data = static_cast<const tensor::DeviceData*>(node->payload());
      if (next_data < graph.data.size() && graph.data[next_data].get() == data) {
        ++next_data;
        continue;
      }
      cut.folded.push_back(data->id());
      if (!tensor::IsSpecial(*data->fill())) add_packed(*data->fill(), lines[node]);
    } else if (&node->op() == &ir::ops::scalar) {
      add_packed(ir::AttributeReader(node->attributes()).Scalar(), lines[node]);
    }
  }
  for (const tensor::GraphNumber& number : graph.numbers) {
    cut.numbers.push_back(
        {number.bits, number.is_float, number.packed, graph.order[number.position]->location()});
  }
}

}  // namespace torch_xla::exec
