// The host's allocator, which is a CPU device's, too.
#pragma once

namespace torch_xla::runtime {

/// Lets malloc keep what a CPU device's buffers free for the next step: given back to the
/// system, each page of it would fault again. Does nothing where the user has tuned malloc
/// by its environment variables, nor with another malloc than glibc's.
void KeepFreedMemory();

}  // namespace torch_xla::runtime
