// Compiled programs in the cache on disk (disk_cache.h): what they are known by, and the thread
// that puts them there while their first step runs.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "exec/disk_cache.h"
#include "ir/hash.h"
#include "runtime/client.h"

namespace torch_xla::lazy {

using ExecutablePtr = std::shared_ptr<runtime::Executable>;

/// The cache of this process, where its programs can be loaded again; else null.
std::shared_ptr<DiskCache> UsableCache();

std::string TextHash(std::string_view stablehlo);

/// Of the entry of a program: all that its machine code depends on.
std::string ProgramKey(const std::string& text_hash, const runtime::CompileOptions& options);

/// Of the entry that says which program a graph became, and its signature; empty where that cannot
/// be told. Lowering depends on the code that does it, and on what the environment says.
std::string RecordKey(const ir::Hash128& graph);

/// Null where there is none that the plugin takes.
ExecutablePtr LoadProgram(DiskCache& cache, const std::string& key,
                          const runtime::CompileOptions& options);

struct ProgramToStore {
  std::shared_ptr<DiskCache> cache;
  std::string key;
  runtime::CompileOptions options;
  ExecutablePtr executable;
  DiskCache::Claim claim;          // ends when it is there
  std::string record_key, record;  // of a graph that became it; the key may be empty
};

/// Soon, on a thread of its own: serializing takes a tenth of the compile.
void StoreProgram(ProgramToStore program);

/// Waits until all are there.
void FinishStoring();

}  // namespace torch_xla::lazy
