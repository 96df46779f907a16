// torch.Generator(device='xla'): a random state that belongs to the user, or the device's own.
#pragma once

#include <ATen/core/Generator.h>

#include "ir/node.h"

namespace torch_xla::aten {

class XLAGeneratorImpl final : public c10::GeneratorImpl {
 public:
  /// `of_device`: it stands for the device's own state, of which nobody knows the first seed. Its
  /// seed is the state that the device has, and its offset 0.
  explicit XLAGeneratorImpl(c10::DeviceIndex device, bool of_device = false);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::XLA; }

  /// The seed of a random op.
  ir::Value DrawSeed();

 private:
  XLAGeneratorImpl* clone_impl() const override;
  const bool of_device_;
  uint64_t seed_ = 0, state_ = 0;
};

/// The seed of a random op, from `generator` or else from the device's state.
ir::Value DrawSeed(const std::optional<at::Generator>& generator, int device);

/// Sets a mask, an int64 tensor, that seeds drawn by this thread from now on are xored with; null:
/// none. The mask is a 0 whose value the compiler does not know, so that recomputed random numbers
/// are really computed again. Returns the previous mask.
std::optional<at::Tensor> SetSeedMask(std::optional<at::Tensor> mask);

/// The generator that represents the device's own state.
const at::Generator& DefaultGenerator(c10::DeviceIndex device);

}  // namespace torch_xla::aten
