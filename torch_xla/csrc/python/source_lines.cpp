#include "python/source_lines.h"

#include <Python.h>

// The interpreter's frames are not part of its public interface; PyTorch reads them as well.
#if PY_VERSION_HEX >= 0x030C0000
#undef _PyGC_FINALIZED
#endif
#define Py_BUILD_CORE
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe_structs.h>
#else
#include <internal/pycore_frame.h>
#endif
#undef Py_BUILD_CORE

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "tensor/node_factory.h"

namespace torch_xla::python {
namespace {

namespace py = pybind11;

using Frame = _PyInterpreterFrame;
using Location = ir::SourceLocation;

// ---------------------------------------------------------------- frames of each version

#ifdef Py_GIL_DISABLED
// Without the GIL, other threads may free the frames while they are read, and each thread has its
// own instructions.
Frame* CurrentFrame() { return nullptr; }
#else
Frame* CurrentFrame() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state) return nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe->current_frame;
#endif
}
#endif

const void* Instruction(const Frame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return frame->instr_ptr;
#else
  return frame->prev_instr;
#endif
}

/// A borrowed reference. It is no code object for a frame that only marks an entry from C.
PyObject* Executable(const Frame* frame) {
#if PY_VERSION_HEX >= 0x030E0000
  return reinterpret_cast<PyObject*>(frame->f_executable.bits & ~static_cast<uintptr_t>(3));
#elif PY_VERSION_HEX >= 0x030D0000
  return frame->f_executable;
#else
  return reinterpret_cast<PyObject*>(frame->f_code);
#endif
}

// ---------------------------------------------------------------- facts about code objects

struct Folders {
  std::vector<std::string> own;  // the folders of torch and torch_xla
  std::string standard;          // the folder of Python's standard library
};

/// Folders whose frames do not belong to the user.
const Folders& OthersFolders() {
  static auto& folders = *new Folders([] {
    auto folder = [](const char* module) {
      return py::module_::import("os.path")
                 .attr("dirname")(py::module_::import(module).attr("__file__"))
                 .cast<std::string>() +
             "/";
    };
    return Folders{.own = {folder("torch"), folder("torch_xla")}, .standard = folder("os")};
  }());
  return folders;
}

bool IsUsers(const std::string& file) {
  const Folders& folders = OthersFolders();
  for (const std::string& folder : folders.own) {
    if (file.starts_with(folder)) return false;
  }
  // The standard library (contextlib, functools, …), except packages that are installed below it.
  if (file.starts_with(folders.standard) && file.find("-packages/") == file.npos) return false;
  // Generated code. "<stdin>", "<string>" and similar names are the user's code.
  for (const char* made : {"<frozen ", "<eval_with_key>", "<shim>", "<trampoline>"}) {
    if (file.starts_with(made)) return false;
  }
  return true;
}

constexpr size_t kMaxCodes = 1 << 16;  // code made in a loop must not fill the memory

std::mutex mutex;  // guards the next three; never held while waiting for the GIL
auto& codes = *new std::unordered_map<const PyCodeObject*, const ir::SourceCode*>;
auto& locations = *new std::unordered_map<const void*, const Location*>;
auto& with_callers =
    *new std::unordered_map<const Location*, std::unordered_map<const Location*, const Location*>>;

/// PyTorch's Python function that calls the autograd engine.
std::atomic<const ir::SourceCode*> engine{nullptr};

std::string Utf8(PyObject* text) {
  const char* chars = PyUnicode_AsUTF8(text);
  if (!chars) PyErr_Clear();
  return chars ? chars : "?";
}

/// Must be called with the GIL. The code object is kept for ever, since its address is the key.
const ir::SourceCode* ReadCode(PyCodeObject* code) {
  {
    std::lock_guard lock(mutex);
    if (auto it = codes.find(code); it != codes.end()) return it->second;
    if (codes.size() >= kMaxCodes) return nullptr;
  }
  auto made = std::make_unique<ir::SourceCode>();
  made->file = Utf8(code->co_filename);
  made->function = Utf8(code->co_qualname);
  made->users = IsUsers(made->file);
  try {
    auto object = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code));
    for (py::handle range : object.attr("co_lines")()) {
      auto [begin, end, line] = range.cast<std::tuple<uint32_t, uint32_t, py::object>>();
      made->lines.push_back({begin, line.is_none() ? 0 : line.cast<int>()});
    }
  } catch (const py::error_already_set&) {  // no lines are known then
  }
  std::lock_guard lock(mutex);
  auto [it, is_new] = codes.emplace(code, made.get());
  if (is_new) {
    Py_INCREF(code);
    if (!made->users && made->function == "_engine_run_backward") engine.store(made.get());
    made.release();
  }
  return it->second;
}

/// Returns null for a frame without code.
const Location* ReadFrame(const Frame* frame, const void* instruction) {
  py::gil_scoped_acquire gil;
  PyObject* executable = Executable(frame);
  if (!executable || !PyCode_Check(executable)) return nullptr;
  auto* code = reinterpret_cast<PyCodeObject*>(executable);
  const ir::SourceCode* source = ReadCode(code);
  if (!source) return nullptr;
  const ptrdiff_t offset =
      static_cast<const char*>(instruction) - static_cast<const char*>(code->co_code_adaptive);
  std::lock_guard lock(mutex);
  const Location*& location = locations[instruction];
  // A pair of locations: the second one is the same line in a backward pass.
  if (!location) {
    const auto at = static_cast<uint32_t>(std::max<ptrdiff_t>(offset, 0));
    location = new Location[2]{{source, at}, {source, at, true}};
  }
  return location;
}

const Location* InBackward(const Location* location) { return location + 1; }

/// The locations that a thread has seen, so that it takes no lock for them.
struct Cache {
  struct Slot {
    const void* instruction = nullptr;
    const Location* location = nullptr;
  };
  static constexpr int kBits = 11;
  std::array<Slot, 1 << kBits> slots;
  // All locations, since two instructions of a loop may share a slot.
  std::unordered_map<const void*, const Location*> all;
};

/// A pointer, since a library has little room for thread-local data, and one without a dynamic
/// constructor, so that no access checks whether it is constructed.
constinit thread_local Cache* cache = nullptr;

Cache& MakeCache() {
  thread_local const auto owner = std::make_unique<Cache>();
  return *(cache = owner.get());
}

const Location* Look(const Frame* frame) {
  const void* instruction = Instruction(frame);
  const auto address = reinterpret_cast<uintptr_t>(instruction);
  Cache& known = cache ? *cache : MakeCache();
  Cache::Slot& slot = known.slots[(address >> 1) * 0x9E3779B97F4A7C15ull >> (64 - Cache::kBits)];
  if (slot.instruction == instruction) [[likely]]
    return slot.location;
  auto it = known.all.find(instruction);
  if (it == known.all.end()) {
    const Location* location = ReadFrame(frame, instruction);
    if (!location) return nullptr;
    it = known.all.emplace(instruction, location).first;
  }
  slot = {instruction, it->second};
  return it->second;
}

// ---------------------------------------------------------------- the backward pass

/// The lines at which the last nodes of autograd were made, by thread and sequence number.
struct Forward {
  std::atomic<uint64_t> key{0};
  std::atomic<const Location*> location{nullptr};
};
constexpr size_t kForwards = 1 << 16;
Forward forwards[kForwards];

uint64_t KeyOf(uint64_t thread, uint64_t sequence) { return thread << 44 ^ (sequence + 1); }

void NoteForward(const Location* location) {
  if (!c10::GradMode::is_enabled()) return;
  // If autograd made a node for this call, it made it just before calling this library.
  const uint64_t next = at::sequence_number::peek();
  const uint64_t key = KeyOf(at::RecordFunction::currentThreadId(), next - 1);
  Forward& forward = forwards[next % kForwards];
  // Only the first call after the node was made is the node's own call.
  if (forward.key.load(std::memory_order_relaxed) == key) return;
  forward.location.store(location, std::memory_order_relaxed);
  forward.key.store(key, std::memory_order_release);
}

const Location* ForwardOfBackward() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return nullptr;
  const Forward& forward = forwards[(node->sequence_nr() + 1) % kForwards];
  const uint64_t key = KeyOf(node->thread_id(), node->sequence_nr());
  if (forward.key.load(std::memory_order_acquire) != key) return nullptr;
  return InBackward(forward.location.load(std::memory_order_relaxed));
}

thread_local const Location* module = nullptr;
constexpr const char* kModule = "module";  // in place of a file

/// `location` together with its callers on the rest of the stack.
const Location* WithCallers(const Location* location, const Frame* frame) {
  std::vector<const Location*> stack{location};
  for (frame = frame->previous; frame; frame = frame->previous) {
    const Location* caller = Look(frame);
    if (caller && caller->code->users) stack.push_back(caller);
  }
  std::lock_guard lock(mutex);
  const Location* whole = module;
  for (size_t i = stack.size(); i-- > 0;) {
    const Location*& made = with_callers[whole][stack[i]];
    if (!made) {
      const Location& at = *stack[i];
      made = new Location[2]{{at.code, at.offset, false, true, whole},
                             {at.code, at.offset, true, true, whole}};
    }
    whole = made;
  }
  return whole;
}

}  // namespace

const ir::SourceLocation* UserLocation() {
  static const auto& code = *new ir::SourceCode{"<backward>", "backward", {}, false};
  static const Location unknown{&code, 0};
  const Location* innermost = nullptr;
  bool in_engine = false;
  for (const Frame* frame = CurrentFrame(); frame; frame = frame->previous) {
    const Location* location = Look(frame);
    if (!location) continue;
    if (location->code->users) [[likely]] {
      if (tensor::IrDebug()) location = WithCallers(location, frame);
      if (in_engine) return InBackward(location);
      NoteForward(location);
      return location;
    }
    if (!innermost) innermost = location;
    if (!in_engine && location->code == engine.load(std::memory_order_relaxed)) {
      in_engine = true;
      if (const Location* forward = ForwardOfBackward()) return forward;
    }
  }
  if (innermost) return innermost;
  if (const Location* forward = ForwardOfBackward()) return forward;
  // A thread of the autograd engine has no Python frame.
  return torch::autograd::get_current_node() ? &unknown : nullptr;
}

void SetModule(const std::string& name) {
  static auto& modules = *new std::unordered_map<std::string, const Location*>;
  if (name.empty()) {
    module = nullptr;
    return;
  }
  std::lock_guard lock(mutex);
  const Location*& made = modules[name];
  if (!made) {
    const auto* code = new ir::SourceCode{kModule, name, {}, false};
    made = new Location{code, 0, false, true};
  }
  module = made;
}

const std::string* ModuleOf(const ir::SourceLocation* location) {
  while (location && location->caller) location = location->caller;
  return location && location->code->file == kModule ? &location->code->function : nullptr;
}

const char* Reader() {
  for (const Frame* frame = CurrentFrame(); frame; frame = frame->previous) {
    const Location* location = Look(frame);
    if (!location) continue;
    if (location->code->users) break;
    if (location->code->file.ends_with("/_tensor_str.py")) return "print(tensor)";
  }
  return nullptr;
}

void PrepareUserLocation() { OthersFolders(); }

}  // namespace torch_xla::python
