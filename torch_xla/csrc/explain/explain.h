// Why programs are compiled: what each was compared with the nearest one before it, and the line
// of the user's program that asked for it. Works without any switch; PT_XLA_DEBUG prints it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/program.h"
#include "explain/graph_record.h"
#include "tensor/origin.h"

namespace torch_xla::lazy {

/// A compilation, in text.
struct Explanation {
  int64_t number = 0;  // of the compilations of this process, from 1
  std::string cause, line;
  std::string hash, nearest;  // of graphs; the latter empty where there is none
  size_t nodes = 0, changed = 0, inputs = 0, outputs = 0;
  bool near = false;  // it is one program that changed: a recompilation
  struct Reason {
    std::string kind, text, line;
    std::string remedy;  // empty for what tells two programs apart

    std::string ToString() const;
  };
  std::vector<Reason> reasons;            // never empty
  std::string disk_key;                   // see NoteDiskMiss
  runtime::Executable::MemoryUse memory;  // once it is compiled

  std::string ToString() const;
};

/// A program that is not in memory is about to be made. Compares, remembers and prints it; throws
/// where such a recompilation shall be an error. `program` holds all that its key is made of.
/// Returns the number of the explanation.
int64_t ExplainCompile(const Graph& graph, const Program& program, const ir::Hash128& key,
                       const Origin& origin);

/// What the compiler says of the memory that a program needs.
void NoteMemory(int64_t number, const runtime::Executable::MemoryUse& memory);

/// The graph of a compilation, null where it is no longer kept.
GraphRecordPtr RecordOf(int64_t number);

/// What the cache on disk was asked for, in vain, when the program of a compilation was made: the
/// key of its entry. An explanation says what it lacks once somebody asks.
void NoteDiskMiss(int64_t number, std::string key) noexcept;

/// Prints what runs: for debug::DebugLevel() of 2.
void ExplainExecution(const Graph& graph, const Origin& origin);

/// The last `count` that are newer than number `after`, oldest first. The last 256 are kept.
std::vector<Explanation> Explanations(int64_t after, size_t count);

/// What a recompilation of nearly the same graph is: an error (XLA_ON_RECOMPILE=error), or
/// nothing. Returns what it was before.
bool SetRecompileIsError(bool error);

/// How many bytes the records of graphs take that later ones are compared with, and their nodes.
std::pair<size_t, size_t> RecordSize();

}  // namespace torch_xla::lazy
