// Explains why programs are compiled: compares each program with the most similar earlier one, and
// names the line of the user's program that asked for it. Always on; PT_XLA_DEBUG prints the
// explanations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/program.h"
#include "explain/graph_snapshot.h"
#include "tensor/origin.h"

namespace torch_xla::explain {

/// The explanation of a compilation, as text.
struct Explanation {
  int64_t number = 0;  // counts the compilations of this process from 1
  std::string cause, line;
  std::string hash, nearest;  // of graphs; `nearest` is empty if there is none
  size_t nodes = 0, changed = 0, inputs = 0, outputs = 0;
  bool near = false;  // whether this is a recompilation: a program that changed
  struct Reason {
    std::string kind, text, line;
    std::string remedy;  // empty if the two programs are unrelated

    std::string ToString() const;
  };
  std::vector<Reason> reasons;            // never empty
  std::string disk_key;                   // see NoteDiskMiss
  runtime::Executable::MemoryUse memory;  // known once it is compiled

  std::string ToString() const;
};

/// Explains a program that is not in memory and is about to be made: compares it with earlier ones,
/// remembers and prints it. Throws if such a recompilation shall be an error. `program` holds
/// everything that its key covers. Returns the number of the explanation.
int64_t ExplainCompile(const tensor::Graph& graph, const exec::Program& program,
                       const ir::Hash128& key, const tensor::Origin& origin);

/// Notes the compiler's statistics of the memory that a program needs.
void NoteMemory(int64_t number, const runtime::Executable::MemoryUse& memory);

/// The graph of a compilation; null if it is no longer kept.
GraphSnapshotPtr RecordOf(int64_t number);

/// Notes the key under which the program of a compilation was not found on disk. The missing part
/// of the key is found out only when somebody asks.
void NoteDiskMiss(int64_t number, std::string key) noexcept;

/// Prints what is executed, if debug::DebugLevel() is 2.
void ExplainExecution(const tensor::Graph& graph, const tensor::Origin& origin);

/// The last `count` explanations with numbers above `after`, oldest first. The last 256 are kept.
std::vector<Explanation> Explanations(int64_t after, size_t count);

/// Sets whether a recompilation of nearly the same graph is an error (XLA_ON_RECOMPILE=error).
/// Returns the previous setting.
bool SetRecompileIsError(bool error);

/// The memory, in bytes, of the records of graphs that later graphs are compared with, and the
/// number of their nodes.
std::pair<size_t, size_t> RecordSize();

}  // namespace torch_xla::explain
