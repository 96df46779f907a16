// Steps that read or compile again and again, which PT_XLA_DEBUG tells: "pt-xla-profiler:
// TransferFromDeviceTime too frequent: 10 counts during 10 steps, …". Once for each place.
#pragma once

#include <string>

#include "tensor/origin.h"

namespace torch_xla::lazy {

/// The calling thread has cut a step.
void NoteStepOfMany();
/// It has read what a device computed.
void NoteFrequentRead(const Origin& origin);
/// It has compiled, for that cause (of an origin) and reason.
void NoteFrequentCompile(const std::string& cause, const std::string& reason);

}  // namespace torch_xla::lazy
