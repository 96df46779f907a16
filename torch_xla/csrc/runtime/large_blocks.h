// Large blocks of memory that a plugin for the host frees, kept for its next step.
#pragma once

namespace torch_xla::runtime {

/// From now on what the library at `address` asks for in blocks of 1 MiB and more are mappings of
/// their own, which are given to it again once it has freed them. glibc's malloc maps and unmaps
/// each of 32 MiB and more by itself, and gives smaller ones back as well in the arenas of threads,
/// whose heaps of 64 MiB go when they are empty: all pages of a program's memory would fault anew
/// in each step. At most 64 blocks are kept, and as much is given up as the library needs once that
/// fits none of them. Nobody else may free them. Does nothing with another malloc than glibc's.
void KeepLargeBlocks(const void* address);

/// Gives the blocks that are kept back to the system.
void GiveBackLargeBlocks();

}  // namespace torch_xla::runtime
