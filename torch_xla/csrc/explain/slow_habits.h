// Reports steps that read or compile again and again, if PT_XLA_DEBUG is set: "pt-xla-profiler:
// TransferFromDeviceTime too frequent: 10 counts during 10 steps, …". Each place is reported once.
#pragma once

#include <string>

#include "tensor/origin.h"

namespace torch_xla::explain {

/// Notes that the calling thread has ended a step.
void NoteStepOfMany();
/// Notes that the calling thread has read computed data.
void NoteFrequentRead(const tensor::Origin& origin);
/// Notes that the calling thread has compiled, with the cause (text of an origin) and the reason.
void NoteFrequentCompile(const std::string& cause, const std::string& reason);

}  // namespace torch_xla::explain
