#include "cpu/foreach.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "cpu/ffi_parts.h"
#include "cpu/float_vectors.h"
#include "cpu/handlers.h"
#include "cpu/instruction_sets.h"
#include "cpu/row_sums.h"

namespace torch_xla::cpu {
namespace {

using namespace runtime::pjrt;

constexpr int64_t kBlock = 16;  // a line of the cache, and the longest vector

template <int kLanes>
C10_ALWAYS_INLINE void Sqrt(Lanes<kLanes>& a) {
  float from[kLanes], to[kLanes];
  std::memcpy(from, &a, sizeof(a));
  for (int64_t k = 0; k < kLanes; ++k) to[k] = std::sqrt(from[k]);
  std::memcpy(&a, to, sizeof(a));
}

/// Computes ATen's formula from `a` and the other arguments into `a`. NaN wins over every number.
/// Arguments are references, because the calling convention for vectors of this width differs
/// between instruction sets.
template <int kLanes, ForeachOp kOp, typename V = Lanes<kLanes>>
C10_ALWAYS_INLINE void Apply(V& a, const V& b, const V& c, const V& d) {
  using Bits = Vector<int32_t, kLanes>;
  constexpr int32_t kMagnitude = 0x7fffffff;
  switch (kOp) {
    case ForeachOp::kAbs:
      a = V(Bits(a) & kMagnitude);
      break;
    case ForeachOp::kAdd:
      a += b;
      break;
    case ForeachOp::kAddScaled:
      a += c * b;
      break;
    case ForeachOp::kAddcdiv:
      a += d * b / c;
      break;
    case ForeachOp::kAddcmul:
      a += d * b * c;
      break;
    case ForeachOp::kDiv:
      a /= b;
      break;
    case ForeachOp::kLerp:
      a = V(Bits(c) & kMagnitude) < 0.5f ? a + c * (b - a) : b - (b - a) * (1 - c);
      break;
    case ForeachOp::kMaximum:
      a = (a != a) | (a > b) ? a : b;
      break;
    case ForeachOp::kMinimum:
      a = (a != a) | (a < b) ? a : b;
      break;
    case ForeachOp::kMul:
      a *= b;
      break;
    case ForeachOp::kNeg:
      a = -a;
      break;
    case ForeachOp::kReciprocal:
      a = 1 / a;
      break;
    case ForeachOp::kSqrt:
      Sqrt<kLanes>(a);
      break;
    case ForeachOp::kSub:
      a -= b;
      break;
    case ForeachOp::kSubScaled:
      a -= c * b;
      break;
  }
}

/// Number of elements in a chunk: each step of the call processes one chunk at a time.
constexpr int64_t kChunk = 256;

/// The place of an argument: consecutive blocks, or the same block for all elements.
struct Source {
  const float* data = nullptr;
  int64_t blocks = 0;       // 1, or 0 if the block is the same for all elements
  int64_t whole = 0;        // 1: `data` spans the tensor; 0: it holds one chunk
  bool is_fetched = false;  // whether it comes from memory, so that prefetching helps

  void Advance(int64_t elements) { data += elements * whole; }
  /// Prefetches a later chunk while this chunk is computed: the square roots and quotients of AdamW
  /// take about as long as its memory accesses.
  C10_ALWAYS_INLINE void Fetch() const {
    constexpr int64_t kAhead = 2 * kChunk;
    if (!is_fetched) return;
    for (int64_t i = 0; i < kChunk; i += kBlock) __builtin_prefetch(data + kAhead + i);
  }
};
using Sources = std::array<Source, ForeachStep::kMaxArguments>;

/// `to` may be one of the sources. The pointers are copied into local variables, since the compiler
/// must assume that writes through `to` change `from`.
template <int kLanes, ForeachOp kOp>
C10_ALWAYS_INLINE void Map(const Sources& from, float* to, int64_t count) {
  const float *w = from[0].data, *x = from[1].data, *y = from[2].data, *z = from[3].data;
  const int64_t w1 = from[0].blocks, x1 = from[1].blocks, y1 = from[2].blocks, z1 = from[3].blocks;
  const auto map = [&](int64_t i, size_t bytes) C10_ALWAYS_INLINE_ATTRIBUTE {
    Lanes<kLanes> a{}, b{}, c{}, d{};
    std::memcpy(&a, w + i * w1, bytes);
    std::memcpy(&b, x + i * x1, bytes);
    std::memcpy(&c, y + i * y1, bytes);
    std::memcpy(&d, z + i * z1, bytes);
    Apply<kLanes, kOp>(a, b, c, d);
    std::memcpy(to + i, &a, bytes);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) map(i, sizeof(Lanes<kLanes>));
  if (i < count) map(i, (count - i) * sizeof(float));
}

using Kernel = void (*)(const Sources& from, float* to, int64_t count);

Kernel FindKernel(ForeachOp op) {
#define TORCH_XLA_FOREACH(kOp)                                                \
  case ForeachOp::kOp:                                                        \
    return ForThisProcessor<&Map<4, ForeachOp::kOp>, &Map<8, ForeachOp::kOp>, \
                            &Map<16, ForeachOp::kOp>>();
  switch (op) {
    TORCH_XLA_FOREACH(kAbs)
    TORCH_XLA_FOREACH(kAdd)
    TORCH_XLA_FOREACH(kAddScaled)
    TORCH_XLA_FOREACH(kAddcdiv)
    TORCH_XLA_FOREACH(kAddcmul)
    TORCH_XLA_FOREACH(kDiv)
    TORCH_XLA_FOREACH(kLerp)
    TORCH_XLA_FOREACH(kMaximum)
    TORCH_XLA_FOREACH(kMinimum)
    TORCH_XLA_FOREACH(kMul)
    TORCH_XLA_FOREACH(kNeg)
    TORCH_XLA_FOREACH(kReciprocal)
    TORCH_XLA_FOREACH(kSqrt)
    TORCH_XLA_FOREACH(kSub)
    TORCH_XLA_FOREACH(kSubScaled)
  }
#undef TORCH_XLA_FOREACH
  TORCH_INTERNAL_ASSERT(false);
}

int64_t CountOf(const XLA_FFI_Buffer& buffer) {
  int64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

float Number(const XLA_FFI_Buffer& buffer) {
  switch (buffer.dtype) {
    case XLA_FFI_DataType_F64:
      return static_cast<float>(*static_cast<const double*>(buffer.data));
    case XLA_FFI_DataType_S64:
      return static_cast<float>(*static_cast<const int64_t*>(buffer.data));
    default:
      return *static_cast<const float*>(buffer.data);
  }
}

/// A gradient table in a list that the call computes itself.
struct Table {
  int64_t place;  // index of the operand that stands for the table
  RowSums sums;
  float* data;
};

/// Runs the call on each tensor, chunk by chunk, so that the result of one step is still in the L1
/// cache when the next step reads it.
class Chunks {
 public:
  Chunks(const XLA_FFI_CallFrame& frame, const ForeachCall& call, std::span<const Table> tables,
         int64_t tensors)
      : frame_(frame),
        steps_(call.steps),
        results_(call.results),
        tables_(tables),
        tensors_(tensors),
        chunks_(steps_.size() * kChunk),
        numbers_(steps_.size() * ForeachStep::kMaxArguments * kBlock),
        made_(steps_.size()),
        sources_(steps_.size()) {
    for (const ForeachStep& step : steps_) kernels_.push_back(FindKernel(step.op));
  }

  /// Computes elements `from` to `to` of a tensor. If tables are read, computes the rows that begin
  /// in this range.
  void Run(int64_t tensor, int64_t from, int64_t to) {
    const std::vector<const Table*> tables = FindPlaces(tensor);
    if (tables.empty()) return RunSteps(tensor, from, to);
    const RowSums& alike = tables[0]->sums;
    const int64_t columns = alike.columns(), end = (to + columns - 1) / columns;
    for (int64_t row = (from + columns - 1) / columns; row < end; row += alike.few_rows()) {
      const int64_t next = std::min(row + alike.few_rows(), end);
      for (const Table* table : tables) table->sums.Make(row, next, table->data + row * columns);
      RunSteps(tensor, row * columns, next * columns);
    }
  }

 private:
  /// Where a step's result is: in a tensor (`whole` is 1) or in a buffer of one chunk (0).
  struct Made {
    float* data = nullptr;
    int64_t whole = 0;
  };

  void RunSteps(int64_t tensor, int64_t from, int64_t to) {
    next_ = sources_;
    for (Sources& sources : next_) {
      for (Source& source : sources) source.Advance(from);
    }
    for (int64_t at = from; at < to; at += kChunk) {
      const int64_t count = std::min(to - at, kChunk);
      for (size_t s = 0; s < next_.size(); ++s) {
        Sources& sources = next_[s];
        for (const Source& source : sources) source.Fetch();
        kernels_[s](sources, made_[s].data + at * made_[s].whole, count);
        for (Source& source : sources) source.Advance(kChunk);
      }
      for (size_t r = 0; r < results_.size(); ++r) {
        const Made& made = made_[results_[r]];
        if (!made.whole) std::memcpy(Result(r, tensor) + at, made.data, count * sizeof(float));
      }
    }
  }

  float* Result(size_t r, int64_t tensor) const {
    const int64_t place = static_cast<int64_t>(r) * tensors_ + tensor;
    return FfiData<float>(frame_.rets.rets[place]);
  }

  struct Operand {
    const XLA_FFI_Buffer* buffer = nullptr;  // null if a step computes it
    const Table* table = nullptr;            // the table that the operand stands for

    const void* data() const { return table ? table->data : buffer->data; }
  };
  Operand Find(const ForeachArgument& argument, int64_t tensor) const {
    if (argument.kind == ForeachArgument::kStep) return {};
    const int64_t place = argument.index + (argument.kind == ForeachArgument::kList ? tensor : 0);
    const auto table = std::ranges::find(tables_, place, &Table::place);
    return {static_cast<XLA_FFI_Buffer*>(frame_.args.args[place]),
            table == tables_.end() ? nullptr : &*table};
  }

  /// Sets the sources of all steps for a tensor. Returns the tables that the steps read.
  std::vector<const Table*> FindPlaces(int64_t tensor) {
    for (size_t s = 0; s < steps_.size(); ++s) made_[s] = {chunks_.data() + s * kChunk, 0};
    for (size_t r = 0; r < results_.size(); ++r) {
      float* result = Result(r, tensor);
      if (!IsReadAfter(results_[r], tensor, result)) made_[results_[r]] = {result, 1};
    }
    std::vector<const Table*> tables;
    float* number = numbers_.data();
    for (size_t s = 0; s < steps_.size(); ++s) {
      const std::vector<ForeachArgument>& arguments = steps_[s].arguments;
      for (size_t k = 0; k < sources_[s].size(); ++k) {
        // An operation with fewer arguments ignores the remaining sources.
        const ForeachArgument& argument = arguments[k < arguments.size() ? k : 0];
        const Operand operand = Find(argument, tensor);
        if (!operand.buffer) {
          sources_[s][k] = {made_[argument.index].data, 1, made_[argument.index].whole};
        } else if (operand.buffer->rank > 0) {
          sources_[s][k] = {static_cast<const float*>(operand.data()), 1, 1,
                            k < arguments.size() && !operand.table};
        } else {
          std::fill_n(number, kBlock, Number(*operand.buffer));
          sources_[s][k] = {number, 0, 0};
          number += kBlock;
        }
        if (operand.table && std::ranges::find(tables, operand.table) == tables.end()) {
          tables.push_back(operand.table);
        }
      }
    }
    return tables;
  }

  /// Whether a step after `step` reads an operand at `data`: a result may have the memory of an
  /// operand.
  bool IsReadAfter(int64_t step, int64_t tensor, const void* data) const {
    return std::any_of(steps_.begin() + step + 1, steps_.end(), [&](const ForeachStep& later) {
      return std::any_of(later.arguments.begin(), later.arguments.end(),
                         [&](const ForeachArgument& argument) {
                           const Operand operand = Find(argument, tensor);
                           return operand.buffer && operand.data() == data;
                         });
    });
  }

  const XLA_FFI_CallFrame& frame_;
  const std::vector<ForeachStep>& steps_;
  const std::span<const int64_t> results_;
  const std::span<const Table> tables_;
  const int64_t tensors_;
  std::vector<Kernel> kernels_;
  std::vector<float> chunks_;   // one chunk per step
  std::vector<float> numbers_;  // one block per number
  std::vector<Made> made_;
  std::vector<Sources> sources_, next_;  // of the tensor, of the next chunk
};

std::vector<Table> FindTables(const XLA_FFI_CallFrame& frame,
                              const std::vector<AddedRowsCall>& calls) {
  std::vector<Table> tables;
  void** result = frame.rets.rets + frame.rets.size - std::ssize(calls);
  for (const AddedRowsCall& call : calls) {
    const int64_t rows = static_cast<const XLA_FFI_Buffer*>(*result)->dims[0];
    tables.push_back({call.grad, {frame, call, rows}, FfiData<float>(*result++)});
  }
  return tables;
}

}  // namespace

Words ForeachCall::Encode() const {
  Words words{std::ssize(results)};
  words.insert(words.end(), results.begin(), results.end());
  words.push_back(std::ssize(tables));
  for (const AddedRowsCall& table : tables) {
    const Words of_table = ToWords(table);
    words.insert(words.end(), of_table.begin(), of_table.end());
  }
  for (const ForeachStep& step : steps) {
    words.push_back(static_cast<int64_t>(step.op));
    words.push_back(std::ssize(step.arguments));
    for (const ForeachArgument& argument : step.arguments) {
      words.insert(words.end(), {argument.kind, argument.index});
    }
  }
  return words;
}

ForeachCall ForeachCall::Decode(std::span<const int64_t> words) {
  ForeachCall call;
  auto take = [&](int64_t count) {
    const auto taken = words.first(count);
    words = words.subspan(count);
    return taken;
  };
  const auto results = take(take(1)[0]);
  call.results.assign(results.begin(), results.end());
  constexpr int64_t kTableWords = sizeof(AddedRowsCall) / sizeof(int64_t);
  for (int64_t i = take(1)[0]; i > 0; --i) {
    call.tables.push_back(FromWords<AddedRowsCall>(take(kTableWords)));
  }
  while (!words.empty()) {
    ForeachStep& step = call.steps.emplace_back();
    step.op = static_cast<ForeachOp>(take(1)[0]);
    for (int64_t i = take(1)[0]; i > 0; --i) {
      const auto argument = take(2);
      step.arguments.push_back({static_cast<ForeachArgument::Kind>(argument[0]), argument[1]});
    }
  }
  return call;
}

void RunForeach(const XLA_FFI_CallFrame& frame) {
  const ForeachCall call = ForeachCall::Decode(WordsOf(frame));
  const auto& [steps, results, given] = call;
  const std::vector<Table> tables = FindTables(frame, given);
  const auto tensors = (frame.rets.size - static_cast<int64_t>(tables.size())) /
                       static_cast<int64_t>(results.size());
  std::vector<int64_t> begins = {0};
  for (int64_t i = 0; i < tensors; ++i) {
    begins.push_back(begins.back() + CountOf(*static_cast<XLA_FFI_Buffer*>(frame.rets.rets[i])));
  }
  const int64_t elements = begins.back();
  const auto num_steps = static_cast<int64_t>(steps.size());
  InParts(frame, elements, num_steps * choices::kFloat, [&](int64_t begin, int64_t end) {
    Chunks chunks(frame, call, tables, tensors);
    auto tensor = std::upper_bound(begins.begin(), begins.end(), begin) - begins.begin() - 1;
    for (; tensor < tensors && begins[tensor] < end; ++tensor) {
      chunks.Run(tensor, std::max(begin, begins[tensor]) - begins[tensor],
                 std::min(end, begins[tensor + 1]) - begins[tensor]);
    }
  });
}

}  // namespace torch_xla::cpu
