// Large blocks of memory that a plugin for the host frees, kept for its next step.
#pragma once

namespace torch_xla::runtime {

/// From now on what the library at `address` frees in blocks of 32 MiB and more is given to it
/// again: above that glibc's malloc maps and unmaps each by itself, and all pages of a program's
/// temporary memory would fault anew in each step. At most eight blocks are kept, and none any more
/// once the library needs one that none of them fits. Does nothing with another malloc than
/// glibc's.
void KeepLargeBlocks(const void* address);

/// Gives the blocks that are kept back to the system.
void GiveBackLargeBlocks();

}  // namespace torch_xla::runtime
