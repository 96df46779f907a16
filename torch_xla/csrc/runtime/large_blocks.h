// Keeps large blocks of memory that a plugin for the host frees, for its next step.
#pragma once

namespace torch_xla::runtime {

/// From now on memory that the library at `address` requests in blocks of 1 MiB or more is a
/// mapping of its own, which is kept when the library frees it and reused for a later request.
/// glibc's malloc maps and unmaps each block of 32 MiB or more, and returns smaller blocks to the
/// system as well when a thread's heap becomes empty, so all pages of a program's memory would
/// fault again in each step. At most 64 blocks are kept. If none of them fits a request, as much as
/// requested is unmapped. Other libraries must not free such blocks. Does nothing with another
/// malloc than glibc's.
void KeepLargeBlocks(const void* address);

/// Returns the kept blocks to the system.
void GiveBackLargeBlocks();

}  // namespace torch_xla::runtime
