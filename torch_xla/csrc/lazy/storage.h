// What a tensor's memory is to torch_xla: the root that a tensor and all its views
// share. Its current value is device data or a node of the graph.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <vector>

#include "ir/node.h"
#include "lazy/device_data.h"

namespace torch_xla::lazy {

class Storage : public c10::intrusive_ptr_target {
 public:
  /// `value`'s shape is the storage's; views of it index its elements in row-major order.
  Storage(ir::Value value, int device);
  ~Storage() override;

  const ir::Value& value() const { return value_; }
  ir::ShapeRef shape() const { return value_.shape(); }
  int device() const { return device_; }

  /// Overwrites the whole storage (its shape may change: resize_, set_).
  void Assign(ir::Value value);

  /// Storages on `device` whose value is still a node of the graph, in the order in
  /// which they became so.
  static std::vector<c10::intrusive_ptr<Storage>> Pending(int device);

 private:
  void Hold();
  void LetGo();
  friend struct LiveList;

  ir::Value value_;
  int device_;
  DeviceDataPtr created_with_;  // a fill; see DeviceData::owner_alive
  Storage* previous_ = nullptr;
  Storage* next_ = nullptr;
  bool listed_ = false;
};

using StoragePtr = c10::intrusive_ptr<Storage>;

}  // namespace torch_xla::lazy
