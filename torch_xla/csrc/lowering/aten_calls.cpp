#include "lowering/aten_calls.h"

#include <ATen/Parallel.h>

// Of the OpenMP and MKL that libtorch_cpu brings; where it has others, they are not there.
extern "C" {
__attribute__((weak)) int omp_get_max_threads();
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace torch_xla::lowering {

OneThread::OneThread() {
  at::get_num_threads();  // which sets the thread up once
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

at::Tensor Part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t count) {
  if (dim < 0) return tensor;
  const int64_t size = tensor.size(dim);
  const int64_t from = size * index / count;
  return tensor.narrow(dim, from, size * (index + 1) / count - from);
}

}  // namespace torch_xla::lowering
