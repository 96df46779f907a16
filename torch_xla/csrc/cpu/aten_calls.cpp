#include "cpu/aten_calls.h"

#include <ATen/Parallel.h>

// Functions of the OpenMP and MKL in libtorch_cpu. They are null if it has other libraries.
extern "C" {
__attribute__((weak)) int omp_get_max_threads();
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
__attribute__((weak)) int mkl_vml_serv_cpu_detect();
}

namespace torch_xla::cpu {
namespace {

// MKL's first vector function in a process stores the kind of the processor twice: first as it was
// detected, then as an index of MKL's tables. On some processors the first number is the index of
// inaccurate functions, which a thread that calls at that moment would get. So trigger the
// detection while no other thread runs.
[[maybe_unused]] const int processor = mkl_vml_serv_cpu_detect ? mkl_vml_serv_cpu_detect() : 0;

}  // namespace

// at::set_num_threads() would also change the default of threads that are started later.
OneThread::OneThread() {
  at::get_num_threads();  // Sets the thread up once.
  if (omp_set_num_threads && omp_get_max_threads) {
    threads_ = omp_get_max_threads();
    omp_set_num_threads(1);
  }
  if (MKL_Set_Num_Threads_Local) mkl_threads_ = MKL_Set_Num_Threads_Local(1);
}

OneThread::~OneThread() {
  if (threads_ > 0) omp_set_num_threads(threads_);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(mkl_threads_);
}

at::Tensor AtenPart::operator()(const at::Tensor& tensor, int64_t dim) const {
  if (dim < 0) return tensor;
  const int64_t size = tensor.size(dim);
  const int64_t from = size * index / count;
  return tensor.narrow(dim, from, size * (index + 1) / count - from);
}

}  // namespace torch_xla::cpu
