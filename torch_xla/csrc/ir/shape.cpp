#include "ir/shape.h"

#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <map>
#include <mutex>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "ir/hash.h"
#include "ir/of_thread.h"

namespace torch_xla::ir {
namespace {

struct Key {
  c10::ScalarType dtype;
  bool wrapped;
  c10::IntArrayRef dims;
};

struct ContentHash {
  using is_transparent = void;
  size_t operator()(const Key& key) const {
    Hasher hasher;
    hasher.Add(static_cast<uint64_t>(key.dtype) * 2 + key.wrapped);
    for (int64_t dim : key.dims) hasher.Add(static_cast<uint64_t>(dim));
    return hasher.Finish().low;
  }
  size_t operator()(ShapeRef s) const { return (*this)(Key{s->dtype, s->wrapped, s->dims}); }
};

struct ContentEqual {
  using is_transparent = void;
  static Key ToKey(ShapeRef s) { return {s->dtype, s->wrapped, s->dims}; }
  static const Key& ToKey(const Key& key) { return key; }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    const Key& x = ToKey(a);
    const Key& y = ToKey(b);
    return x.dtype == y.dtype && x.wrapped == y.wrapped && x.dims == y.dims;
  }
};

using ShapeSet = std::unordered_set<ShapeRef, ContentHash, ContentEqual>;

constinit thread_local void* shapes_of_thread = nullptr;

ShapeRef Intern(const Key& key) {
  static std::mutex mutex;
  static ShapeSet& shapes = *new ShapeSet;  // outlives static destruction
  std::lock_guard<std::mutex> lock(mutex);
  auto it = shapes.find(key);
  if (it != shapes.end()) return *it;
  int64_t numel = 1, bytes = 0;
  bool overflows = false;
  for (int64_t dim : key.dims) {
    TORCH_CHECK(dim >= 0, "Trying to create tensor with negative dimension ", dim, ": ", key.dims);
    overflows |= c10::mul_overflows(numel, dim, &numel);
  }
  overflows |= c10::mul_overflows(numel, static_cast<int64_t>(c10::elementSize(key.dtype)), &bytes);
  TORCH_CHECK(!overflows, "Storage size calculation overflowed with sizes=", key.dims);
  auto* shape = new Shape{key.dtype, key.wrapped, numel, ContentHash()(key), {}, {}};
  shape->alone.shapes.push_back(shape);
  shape->dims.assign(key.dims.begin(), key.dims.end());
  shapes.insert(shape);
  return shape;
}

}  // namespace

ShapeRef GetShape(c10::ScalarType dtype, c10::IntArrayRef dims, bool wrapped) {
  // A table per thread in front of the shared table, so that tracing takes no lock.
  auto& seen = OfThread<ShapeSet>(shapes_of_thread);
  Key key{dtype, wrapped, dims};
  auto it = seen.find(key);
  if (it != seen.end()) return *it;
  MakeRoom(seen);
  return *seen.insert(Intern(key)).first;
}

const OutputShapes* InternOutputs(const OutputShapes& outputs) {
  const c10::ArrayRef<ShapeRef> shapes = outputs.shapes;
  if (shapes.size() == 1 && shapes[0]) return InternOutputs(shapes[0]);
  static std::mutex mutex;
  static auto& lists = *new std::map<std::vector<ShapeRef>, OutputShapes>;
  std::lock_guard lock(mutex);
  return &lists.try_emplace(shapes.vec(), outputs).first->second;
}

const char* DtypeName(c10::ScalarType dtype) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Bool:
      return "pred";
    case ScalarType::Byte:
      return "u8";
    case ScalarType::Char:
      return "s8";
    case ScalarType::Short:
      return "s16";
    case ScalarType::Int:
      return "s32";
    case ScalarType::Long:
      return "s64";
    case ScalarType::UInt16:
      return "u16";
    case ScalarType::UInt32:
      return "u32";
    case ScalarType::UInt64:
      return "u64";
    case ScalarType::Half:
      return "f16";
    case ScalarType::BFloat16:
      return "bf16";
    case ScalarType::Float:
      return "f32";
    case ScalarType::Double:
      return "f64";
    case ScalarType::ComplexFloat:
      return "c64";
    case ScalarType::ComplexDouble:
      return "c128";
    default:
      return c10::toString(dtype);
  }
}

std::string Shape::ToString() const {
  std::ostringstream out;
  out << DtypeName(dtype) << '[';
  for (size_t i = 0; i < dims.size(); ++i) out << (i ? "," : "") << dims[i];
  out << ']';
  return out.str();
}

}  // namespace torch_xla::ir
