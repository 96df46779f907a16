// The shared libraries of this process, as the dynamic linker has them.
#pragma once

#include <string>

struct link_map;

namespace torch_xla::runtime {

/// The loaded library that an address lies in; null for none, and where the system does not tell.
const link_map* LibraryOf(const void* address);

/// What the linker wrote into the library at `address` to tell its content from others', in
/// hexadecimal digits; empty where it wrote nothing.
std::string BuildIdOf(const void* address);

/// Gives the pages of the code and constants of the library at `address` back to the system, which
/// keeps them as a part of the file and maps those that are used again. Making a client and
/// compiling use code of XLA and LLVM by the tens of megabytes that no step uses.
void GiveBackCode(const void* address);

}  // namespace torch_xla::runtime
