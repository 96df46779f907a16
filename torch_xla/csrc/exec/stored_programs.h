// Compiled programs in the cache on disk (disk_cache.h): their keys, and the thread that stores
// them while their first step runs.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "exec/disk_cache.h"
#include "ir/hash.h"
#include "runtime/client.h"

namespace torch_xla::exec {

using ExecutablePtr = std::shared_ptr<runtime::Executable>;

/// The cache of this process, or null if the plugin cannot load programs from it.
std::shared_ptr<DiskCache> UsableCache();

std::string TextHash(std::string_view stablehlo);

/// The key of a program's entry: all that its machine code depends on.
std::string ProgramKey(const std::string& text_hash, const runtime::CompileOptions& options);

/// The key of the entry that says which program a graph became, and its signature; empty if the key
/// cannot be determined. It covers this library's build and the environment, since lowering depends
/// on both.
std::string RecordKey(const ir::Hash128& graph);

/// The program of an entry, or null if there is no entry that the plugin accepts.
ExecutablePtr LoadProgram(DiskCache& cache, const std::string& key,
                          const runtime::CompileOptions& options);

struct ProgramToStore {
  std::shared_ptr<DiskCache> cache;
  std::string key;
  runtime::CompileOptions options;
  ExecutablePtr executable;
  DiskCache::Claim claim;          // released when the entry is written
  std::string record_key, record;  // of the graph that became this program; the key may be empty
};

/// Stores a program soon, on another thread, since serializing takes a noticeable part of the
/// compile time.
void StoreProgram(ProgramToStore program);

/// Waits until all programs are stored.
void FinishStoring();

}  // namespace torch_xla::exec
