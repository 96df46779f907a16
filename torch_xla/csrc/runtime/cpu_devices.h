// The number of devices of the CPU platform, and the threads that they share.
#pragma once

#include <cstdint>

namespace torch_xla::runtime {

/// CPU_NUM_DEVICES, or 1 if it is not set. Throws std::invalid_argument if it is no integer from 1
/// to 128.
int64_t CpuDeviceCount();

/// While it lives, a client that XLA's CPU plugin creates has threads enough for programs of
/// several loops. The plugin runs loops that do not depend on each other at the same time, and a
/// device that waits for the others in a loop holds a thread. By default there is one thread a
/// device: the two directions of a recurrent layer can hold all of them, and hang.
class CpuThreads {
 public:
  explicit CpuThreads(int64_t devices);
  CpuThreads(const CpuThreads&) = delete;
  CpuThreads& operator=(const CpuThreads&) = delete;
  ~CpuThreads();

 private:
  bool set_ = false;
};

}  // namespace torch_xla::runtime
