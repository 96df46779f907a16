#include "tensor/writes_of_thread.h"

namespace torch_xla::lazy {

thread_local constinit WritesOfThread::List* WritesOfThread::open_ = nullptr;

WritesOfThread::WritesOfThread() {
  DropEnded();
  list_ = open_ = new List{.storages = {}, .outer = open_};
}

WritesOfThread::~WritesOfThread() {
  list_->ended.store(true);
  DropEnded();
}

bool WritesOfThread::Has(const Storage* storage) const { return list_->storages.contains(storage); }

void WritesOfThread::Add(const Storage* storage) {
  for (List* list = open_; list; list = list->outer) list->storages.insert(storage);
}

void WritesOfThread::DropEnded() {
  while (open_ && open_->ended.load()) {
    List* ended = open_;
    open_ = ended->outer;
    delete ended;
  }
}

}  // namespace torch_xla::lazy
