// The host's memory, which is a CPU device's, too.
#pragma once

namespace torch_xla::runtime {

/// Lets malloc keep what a CPU device's buffers free for the next step: given back to the
/// system, each page of it would fault again. `plugin` is an address in the library of that device.
/// Does nothing where the user has tuned malloc by its environment variables, nor with another
/// malloc than glibc's.
void KeepFreedMemory(const void* plugin);

/// Gives back to the system what malloc keeps: what was freed is faulted in again where it is
/// needed.
void GiveBackFreedMemory();

/// Whether the process holds over half of the memory mappings that the system allows it
/// (Linux's vm.max_map_count, 65,530 by default). XLA:CPU maps each kernel of a program by
/// itself, hundreds for a training step; at the limit nothing compiles any more, and a large
/// allocation fails as well. Counting them takes up to 10 ms: asked again before 20 times the
/// last count's time has passed, it says no.
bool MappingsAreScarce();

}  // namespace torch_xla::runtime
