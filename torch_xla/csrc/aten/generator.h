// torch.Generator(device='xla'): a random state of the user's own.
#pragma once

#include <ATen/core/Generator.h>

#include "ir/node.h"

namespace torch_xla::aten {

class XLAGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit XLAGeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::XLA; }

  uint64_t Draw();

 private:
  XLAGeneratorImpl* clone_impl() const override;
  uint64_t seed_ = 0, state_ = 0;
};

/// The seed of a random op: from `generator`, else from the device's own state.
ir::Value DrawSeed(const std::optional<at::Generator>& generator, int device);

/// What seeds that this thread draws from now on are xored with, an int64 tensor: a 0 that the
/// compiler takes for any number, so that what is drawn again is computed again. Null: nothing.
/// Returns what that was before.
std::optional<at::Tensor> SetSeedMask(std::optional<at::Tensor> mask);

/// The generator that stands for the device's own state.
const at::Generator& DefaultGenerator(c10::DeviceIndex device);

}  // namespace torch_xla::aten
