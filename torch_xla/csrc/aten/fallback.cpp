#include "aten/fallback.h"

#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <set>

#include "aten/assign.h"
#include "aten/bridge.h"
#include "debug/metrics.h"
#include "debug/report.h"
#include "rules/cpu_trial.h"
#include "tensor/node_factory.h"
#include "tensor/origin.h"

namespace torch_xla::aten {
namespace {

Decomposer decomposer = nullptr;

/// A stack of the operators that run here, each called by the one before. Guards against a
/// decomposition that calls the operator that it decomposes.
class InProgress {
 public:
  explicit InProgress(const c10::OperatorHandle& op)
      : name_(op.operator_name()), outer_(innermost_), entered_(true) {
    for (InProgress* other = outer_; other; other = other->outer_) {
      if (other->name_ == name_) {
        other->called_itself_ = true;
        entered_ = false;
      }
      nested_ |= other->decomposing_ && other->name_.name == name_.name;
    }
    innermost_ = this;
  }
  InProgress(const InProgress&) = delete;
  InProgress& operator=(const InProgress&) = delete;
  ~InProgress() { innermost_ = outer_; }

  bool entered() const { return entered_; }
  bool Decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    decomposing_ = true;
    if (!decomposer(op, stack)) return false;
    // Counts each call once: not for another overload within the same call, and not if the
    // decomposition came back to the same operator, which the CPU ran then.
    const std::string& name = name_.name;
    if (!nested_ && !called_itself_)
      debug::GetCounter("xla::decomp::" + name.substr(name.find("::") + 2)).Add();
    return true;
  }

 private:
  static thread_local InProgress* innermost_;
  c10::OperatorName name_;
  InProgress* outer_;
  bool entered_, nested_ = false, called_itself_ = false, decomposing_ = false;
};

thread_local InProgress* InProgress::innermost_ = nullptr;

/// The functional overload of an in-place or out= overload: "add_.Tensor" and "add.out" have
/// "add.Tensor" and "add".
std::optional<c10::OperatorHandle> Functional(const c10::OperatorHandle& op, bool out) {
  std::string name = op.schema().name(), overload = op.schema().overload_name();
  if (out) {
    // Other overloads are named "out" or after the argument that is written ("grad_input").
    overload.resize(overload.ends_with("_out") ? overload.size() - 4 : 0);
    // Only this operator has overloads of these names that are composite.
    if (name == "aten::norm" && (overload.empty() || overload == "dtype")) {
      overload = "ScalarOpt_dim" + (overload.empty() ? "" : "_" + overload);
    }
  } else {
    if (!name.ends_with("_")) return std::nullopt;
    name.pop_back();
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  auto functional = dispatcher.findSchema({name, overload});
  if (!functional && out) functional = dispatcher.findSchema({name, overload + "_out"});
  if (!functional || functional->schema().is_mutable()) return std::nullopt;
  const size_t outs = out ? op.schema().returns().size() : 0;
  if (functional->schema().arguments().size() + outs != op.schema().arguments().size()) {
    return std::nullopt;
  }
  return functional;
}

void CheckOut(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
              const torch::jit::Stack& results, const std::vector<at::Tensor>& outs) {
  bool as_they_are = true;
  std::vector<at::Tensor> made;
  std::vector<c10::ScalarType> dtypes;
  for (size_t i = 0; i < outs.size(); ++i) {
    made.push_back(results[i].toTensor());
    dtypes.push_back(outs[i].scalar_type());
    as_they_are &= made[i].scalar_type() == dtypes[i];
  }
  if (!as_they_are) rules::CheckOutDtypes(op, arguments, made, dtypes);
}

/// Runs a mutating operator through its functional overload and an assignment.
bool RunFunctional(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& args = schema.arguments();
  bool out = false, inplace = false;
  size_t mutated = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].alias_info() || !args[i].alias_info()->isWrite()) continue;
    ++mutated;
    out |= args[i].is_out();
    inplace |= i == 0 && !args[i].is_out();
  }
  if (out ? inplace || mutated != schema.returns().size() : !inplace || mutated != 1) return false;
  auto functional = Functional(op, out);
  if (!functional) return false;
  torch::jit::Stack inputs(stack->end() - static_cast<int64_t>(args.size()), stack->end());
  std::vector<at::Tensor> targets;
  if (out) {
    for (size_t i = args.size() - mutated; i < args.size(); ++i)
      targets.push_back(inputs[i].toTensor());
    inputs.resize(args.size() - mutated);
  } else {
    targets.push_back(inputs[0].toTensor());
  }
  for (const at::Tensor& target : targets) {
    if (!IsXla(target)) return false;
  }
  const torch::jit::Stack arguments = inputs;
  functional->callBoxed(inputs);
  if (inputs.size() != targets.size()) return false;
  if (out) CheckOut(op, arguments, inputs, targets);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (out) {
      AssignOut(targets[i], inputs[i].toTensor());
    } else {
      AssignInPlace(targets[i], inputs[i].toTensor());
    }
  }
  torch::jit::drop(*stack, args.size());
  for (const at::Tensor& target : targets) stack->push_back(target);
  return true;
}

/// Runs the copying form of a view ("select_copy.int") as the view and a copy of its result.
/// PyTorch does the same for devices that are not functional, and its graphs contain these forms.
bool RunView(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr std::string_view kSuffix = "_copy";
  std::string name = op.schema().name();
  if (!name.ends_with(kSuffix)) return false;
  name.resize(name.size() - kSuffix.size());
  const auto view =
      c10::Dispatcher::singleton().findSchema({std::move(name), op.schema().overload_name()});
  if (!view) return false;
  const auto& arguments = view->schema().arguments();
  const auto* alias = arguments.empty() ? nullptr : arguments[0].alias_info();
  if (!alias || alias->isWrite() || arguments.size() != op.schema().arguments().size()) {
    return false;
  }
  view->callBoxed(stack);
  for (size_t i = stack->size() - view->schema().returns().size(); i < stack->size(); ++i) {
    c10::IValue& result = (*stack)[i];
    if (result.isTensor()) {
      result = result.toTensor().clone();
    } else if (result.isTensorList()) {
      std::vector<at::Tensor> copies = result.toTensorVector();
      for (at::Tensor& copy : copies) copy = copy.clone();
      result = std::move(copies);
    }
  }
  return true;
}

void Warn(const std::string& name) {
  if (debug::DebugLevel() < 1) return;
  static std::mutex mutex;
  static auto& warned = *new std::set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  if (!warned.insert(name).second) return;
  const ir::SourceLocation* line = ir::CurrentLocation();
  debug::Report("pt-xla-profiler: Op(s) not lowered: " + name + ", run on the CPU" +
                (line ? " (first called at " + line->ToString() + ")" : "") +
                "; see docs/op_lowering.md\n");
}

/// Throws for a collective of a process group without a backend for xla. The CPU's backend would
/// work on copies and lose the results, since the schemas do not say what is written. A barrier has
/// no data and is allowed.
void RefuseCollective(const std::string& name) {
  constexpr std::string_view kNamespace = "c10d::";
  if (!name.starts_with(kNamespace) || name == "c10d::barrier") return;
  TORCH_CHECK(
      false, name.substr(kNamespace.size()),
      ": the process group has no backend for xla tensors, but got an xla tensor. Make it with "
      "init_process_group(\"xla\"), or with \"cpu:gloo,xla:xla\" if the program also needs a "
      "backend for CPU tensors");
}

/// Throws for a quantized result, which does not go to xla, and names the operator.
void RefuseQuantized(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (const c10::IValue& result : torch::jit::last(stack, op.schema().returns().size())) {
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !result.toTensor().is_quantized(), op.schema().name(),
        ": the xla device has no tensors of ", result.toTensor().scalar_type(),
        "; torch.ops.quantized_decomposed has these operators on plain integers");
  }
}

}  // namespace

void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  RefuseCollective(op.schema().name());
  InProgress guard(op);
  if (guard.entered()) {
    if (op.schema().is_mutable()) {
      if (RunFunctional(op, stack)) return;
    } else if (RunView(op, stack)) {
      return;
    } else if (decomposer) {
      // A decomposition accepts whatever its parts accept. The CPU runs what is not decomposed.
      const torch::jit::Stack arguments =
          torch::jit::last(*stack, op.schema().arguments().size()).vec();
      bool decomposed = false;
      try {
        decomposed = guard.Decompose(op, stack);
      } catch (const std::exception&) {
        rules::TryOnCpu(op, arguments);  // throws the CPU's error if it refuses
        throw;
      }
      if (decomposed) {
        rules::TryOnCpu(op, arguments);
        return;
      }
    }
  }
  const std::string& name = op.schema().name();
  debug::Counter& counter = debug::GetCounter(name);
  counter.Add();
  Warn(name);
  tensor::CauseScope cause("the CPU runs", counter.name().c_str());
  try {
    at::native::cpu_fallback(op, stack);
  } catch (const c10::NotImplementedError&) {
    if (stack->size() >= op.schema().returns().size()) RefuseQuantized(op, *stack);
    throw;
  }
}

namespace {

void RefuseSparse(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      ": the xla device has no sparse tensors. A layer made with sparse=True (nn.Embedding, "
      "nn.EmbeddingBag) has a sparse gradient: make it with sparse=False, and use a dense "
      "optimizer (torch.optim.Adam for SparseAdam). Other sparse tensors stay on the CPU: call "
      ".to_dense() before .to('xla')");
}

void RefuseQuantizedTensor(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      ": the xla device has no quantized tensors. Move .int_repr() and the scales and use "
      "torch.ops.quantized_decomposed, or call .dequantize() before .to('xla')");
}

/// A RuntimeError, since PyTorch's jagged tensors try something else after NotImplementedError.
void RefuseNested(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(false, op.schema().name(),
              ": the xla device has no strided nested tensors. Make them with "
              "layout=torch.jagged. Attention over jagged tensors makes strided ones, too: pad "
              "them by to_padded_tensor(), and give the attention a mask of the padding");
}

TORCH_LIBRARY_IMPL(_, XLA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

TORCH_LIBRARY_IMPL(_, SparseXLA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RefuseSparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrXLA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RefuseSparse>());
}

TORCH_LIBRARY_IMPL(_, QuantizedXLA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RefuseQuantizedTensor>());
}

// PyTorch's own kernel is for all devices, and leaves the tensor on the CPU.
TORCH_LIBRARY_IMPL(aten, QuantizedXLA, m) {
  m.impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&RefuseQuantizedTensor>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorXLA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&RefuseNested>());
}

// PyTorch's own kernels are for all devices. That of choose_qparams_optimized reads the memory.
TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("choose_qparams_optimized", torch::CppFunction::makeFromBoxedFunction<&Fallback>());
  m.impl("_nested_tensor_from_tensor_list",
         torch::CppFunction::makeFromBoxedFunction<&RefuseNested>());
}

// PyTorch's own kernel is for all devices and makes all compressed sparse tensors.
TORCH_LIBRARY_IMPL(aten, SparseCsrXLA, m) {
  m.impl("_sparse_compressed_tensor_unsafe",
         torch::CppFunction::makeFromBoxedFunction<&RefuseSparse>());
}

}  // namespace

void SetDecomposer(Decomposer function) { decomposer = function; }

}  // namespace torch_xla::aten
