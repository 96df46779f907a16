// The host's memory, which is also the memory of CPU devices.
#pragma once

namespace torch_xla::runtime {

/// Makes malloc keep the memory that a CPU device's buffers free for the next step: if it were
/// returned to the system, each of its pages would fault again. `plugin` is an address in the
/// library of that device. Does nothing if the user has tuned malloc by its environment variables,
/// or with another malloc than glibc's.
void KeepFreedMemory(const void* plugin);

/// Returns the free memory that malloc keeps to the system. Pages that are needed again will fault.
void GiveBackFreedMemory();

/// Whether the process holds more than half of the memory mappings that the system allows (Linux's
/// vm.max_map_count). XLA:CPU makes a mapping for each kernel of a program, which are hundreds for
/// a training step; at the limit no compilation works any more, and large allocations fail as well.
/// Counting the mappings is slow, so after a count this returns false without counting until 20
/// times the duration of the count has passed.
bool MappingsAreScarce();

}  // namespace torch_xla::runtime
