#include "tensor/node_factory.h"

#include <c10/core/DefaultDtype.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "XLAOps.h"
#include "debug/environment.h"
#include "ir/of_thread.h"
#include "lowering/context.h"
#include "lowering/result_type.h"
#include "rules/cpu_trial.h"
#include "rules/shape_inference.h"
#include "tensor/device.h"

namespace torch_xla::tensor {
namespace {

std::atomic<bool> ir_debug{debug::EnvFlag("XLA_IR_DEBUG")};
std::atomic<bool> all_numbers_special{false};

void AddOperation(ir::Hasher& hasher, const ir::OpSpec* op, const ir::Node::Operands& operands,
                  const ir::Words& attributes) {
  hasher.Add(op->id);
  for (const ir::Value& operand : operands) hasher.Add(operand.shape()->hash);
  if (!attributes.numbers) {
    for (uint64_t word : attributes) hasher.Add(word);
    return;
  }
  // Differs from every word of a node without numbers, and from the id of an operand's shape.
  hasher.Add(~uint64_t{attributes.numbers});
  for (size_t i = 0; i < attributes.size(); ++i) {
    if (i >= 32 || !(attributes.numbers >> i & 1)) hasher.Add(attributes[i]);
  }
}

/// Adds the properties of numbers that Meta kernels and lowerings may check: integers as they are,
/// floats by their position among special values.
void AddNumberClasses(ir::Hasher& hasher, const ir::Words& attributes) {
  constexpr double kEdges[] = {-std::numeric_limits<double>::infinity(), -2, -1, 0, 1, 2,
                               std::numeric_limits<double>::infinity()};
  for (uint32_t rest = attributes.numbers; rest; rest &= rest - 1) {
    const int i = std::countr_zero(rest);
    if (!(attributes.floats >> i & 1)) {
      hasher.Add(attributes[i]);
      continue;
    }
    const auto number = std::bit_cast<double>(attributes[i]);
    uint64_t place = 0;
    for (double edge : kEdges) place = 3 * place + (number < edge ? 0 : number == edge ? 1 : 2);
    hasher.Add(place);
  }
}

/// The class of an operand that is a number; 0 for any other operand.
uint32_t ClassOf(const ir::Node& node) {
  if (&node.op() != &ir::ops::scalar && &node.op() != &ir::ops::Constant) return 0;
  return rules::NumberClass(ir::AttributeReader(node.attributes()).Scalar());
}

using Memo = std::unordered_map<ir::Hash128, const ir::OutputShapes*, ir::Hash128Hasher>;
constinit thread_local void* memo_of_thread = nullptr;
constinit thread_local void* constants_of_thread = nullptr;

/// The shapes that all threads have found out, so that a new thread need not ask PyTorch again.
class SharedMemo {
 public:
  static SharedMemo& Get() {
    static auto& memo = *new SharedMemo;
    return memo;
  }
  const ir::OutputShapes* Find(const ir::Hash128& key) const {
    std::lock_guard lock(mutex_);
    auto it = memo_.find(key);
    return it == memo_.end() ? nullptr : it->second;
  }
  void Add(const ir::Hash128& key, const ir::OutputShapes* outputs) {
    std::lock_guard lock(mutex_);
    ir::MakeRoom(memo_, kMax);
    memo_.emplace(key, outputs);
  }

 private:
  static constexpr size_t kMax = 4 * ir::kMaxRemembered;
  mutable std::mutex mutex_;
  Memo memo_;
};

/// Makes a node; its shapes are inferred only for the first node of its kind. Afterwards `operands`
/// and `attributes` are moved from.
ir::NodePtr MakeMemoised(const ir::OpSpec* op, ir::Node::Operands& operands, ir::Words& attributes,
                         c10::function_ref<ir::OutputShapes()> infer) {
  // A map per thread, so that tracing takes no lock. The 128-bit hash stands for the key.
  auto& memo = ir::OfThread<Memo>(memo_of_thread);
  // The default dtype is part of the key: dividing integers by 2 gives numbers of the default
  // dtype.
  const c10::ScalarType default_dtype = c10::get_default_dtype_as_scalartype();
  if (default_dtype != c10::ScalarType::Float)
    attributes.push_back(lowering::DefaultDtypeWord(default_dtype));
  ir::Hasher hasher;
  AddOperation(hasher, op, operands, attributes);
  const ir::Hash128 hash = hasher.Finish();
  // Numbers are parameters, so their classes matter only to the checks.
  uint64_t classes = 0;
  for (const ir::Value& operand : operands) classes = classes * 31 + ClassOf(*operand.node);
  if (attributes.numbers) AddNumberClasses(hasher, attributes);
  const ir::Hash128 given = attributes.numbers ? hasher.Finish() : hash;
  const ir::Hash128 key{given.low ^ classes * 0x9E3779B97F4A7C15ull, given.high + classes};
  auto it = memo.find(key);
  if (it == memo.end()) {
    auto checked = [&](const ir::OutputShapes& shapes) {
      const ir::OutputShapes* outputs = ir::InternOutputs(shapes);
      rules::TryOnCpu(*op, operands, attributes, *outputs);
      // A call that the lowering refuses must fail here, at the call, and not at the sync.
      lowering::LoweringContext::Check(ir::Node(op, operands, attributes, outputs, hash),
                                       Platform());
      return outputs;
    };
    const ir::OutputShapes* outputs = SharedMemo::Get().Find(key);
    if (!outputs) {
      try {
        outputs = checked(infer());
      } catch (const std::exception&) {
        auto on_cpu = rules::ShapesOnCpu(*op, operands, attributes);
        if (!on_cpu) throw;
        outputs = checked(*on_cpu);
      }
      SharedMemo::Get().Add(key, outputs);
    }
    ir::MakeRoom(memo);
    it = memo.emplace(key, outputs).first;
  }
  ir::NodePtr node(new ir::Node(op, std::move(operands), std::move(attributes), it->second, hash));
  node->set_location(ir::CurrentLocation());
  return node;
}

}  // namespace

bool IsSpecial(const c10::Scalar& value) {
  if (AllNumbersSpecial()) return true;
  static const bool enabled = !debug::EnvFlag("XLA_NO_SPECIAL_SCALARS");
  if (!enabled || value.isComplex()) return false;
  if (value.isFloatingPoint()) {
    double number = value.toDouble();
    return number == 1.0 || (number == 0.0 && !std::signbit(number));
  }
  const int64_t number = ir::IntegerBits(value);
  return number == 0 || number == 1;
}

void SetIrDebug(bool on) { ir_debug.store(on, std::memory_order_relaxed); }
bool IrDebug() { return ir_debug.load(std::memory_order_relaxed); }
void SetAllNumbersSpecial(bool on) { all_numbers_special.store(on, std::memory_order_relaxed); }
bool AllNumbersSpecial() { return all_numbers_special.load(std::memory_order_relaxed); }

ir::Value MakeNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes,
                   ir::ShapeRef shape) {
  ir::Hasher hasher;
  AddOperation(hasher, op, operands, attributes);
  hasher.Add(shape->hash);
  ir::NodePtr node(new ir::Node(op, std::move(operands), std::move(attributes),
                                ir::InternOutputs(shape), hasher.Finish()));
  node->set_location(ir::CurrentLocation());
  return {std::move(node), 0};
}

ir::NodePtr MakeOpNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes) {
  return MakeMemoised(op, operands, attributes,
                      [&] { return rules::InferShapes(*op, operands, attributes); });
}

ir::NodePtr MakeOpNode(const ir::OpSpec* op, ir::Node::Operands operands, ir::Words attributes,
                       c10::function_ref<ir::OutputShapes()> infer) {
  return MakeMemoised(op, operands, attributes, infer);
}

ir::Value MakeScalarParameter(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped) {
  ir::ShapeRef shape = ir::GetShape(dtype, {}, wrapped);
  ir::Words words;
  ir::AttributeWriter(words).Scalar(value);
  // The value is left out of the hash, since a program serves all values.
  ir::Hasher hasher;
  hasher.Add(ir::ops::scalar.id);
  hasher.Add(shape->hash);
  return {ir::NodePtr(new ir::Node(&ir::ops::scalar, {}, std::move(words), ir::InternOutputs(shape),
                                   hasher.Finish())),
          0};
}

ir::Value MakeConstant(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped) {
  ir::Words words;
  ir::AttributeWriter(words).Scalar(value);
  return MakeNode(&ir::ops::Constant, {}, std::move(words), ir::GetShape(dtype, {}, wrapped));
}

ir::Value MakeScalar(const c10::Scalar& value, c10::ScalarType dtype, bool wrapped) {
  if (!IsSpecial(value)) return MakeScalarParameter(value, dtype, wrapped);
  if (AllNumbersSpecial()) return MakeConstant(value, dtype, wrapped);
  // alpha = 1 comes with every addition, so all share one node.
  auto& made = ir::OfThread<std::unordered_map<uint32_t, ir::Value>>(constants_of_thread);
  const bool is_one = value.isFloatingPoint() ? value.toDouble() != 0 : ir::IntegerBits(value) != 0;
  ir::Value& constant = made[static_cast<uint32_t>(dtype) << 16 |
                             static_cast<uint32_t>(value.type()) << 8 | wrapped << 1 | is_one];
  if (!constant) constant = MakeConstant(value, dtype, wrapped);
  return constant;
}

ir::Value Cast(const ir::Value& value, c10::ScalarType dtype) {
  ir::ShapeRef shape = value.shape();
  if (shape->dtype == dtype && !shape->wrapped) return value;
  return MakeNode(&ir::ops::cast, {value}, {}, ir::GetShape(dtype, shape->dims));
}

ir::Value Expand(const ir::Value& value, c10::IntArrayRef sizes) {
  ir::ShapeRef shape = value.shape();
  if (c10::IntArrayRef(shape->dims) == sizes) return value;
  return MakeNode(&ir::ops::expand, {value}, {}, ir::GetShape(shape->dtype, sizes));
}

ir::Value Fill(const c10::Scalar& value, ir::ShapeRef shape) {
  return MakeNode(&ir::ops::fill, {MakeScalar(value)}, {}, shape);
}

}  // namespace torch_xla::tensor
