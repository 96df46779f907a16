#include "tensor/writes_of_thread.h"

namespace torch_xla::tensor {

thread_local constinit WritesOfThread::List* WritesOfThread::open_ = nullptr;

WritesOfThread::WritesOfThread() {
  DropEnded();
  list_ = open_ = new List{.storages = {}, .outer = open_};
}

WritesOfThread::~WritesOfThread() {
  list_->ended.store(true);
  DropEnded();
}

void WritesOfThread::Note(const Storage* storage, const Before& before) {
  for (List* list = open_; list; list = list->outer) list->storages.try_emplace(storage, before);
}

void WritesOfThread::DropEnded() {
  while (open_ && open_->ended.load()) {
    List* ended = open_;
    open_ = ended->outer;
    delete ended;
  }
}

}  // namespace torch_xla::tensor
