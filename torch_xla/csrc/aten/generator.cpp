#include "aten/generator.h"

#include <ATen/ops/empty.h>

#include <array>
#include <mutex>
#include <random>
#include <utility>

#include "XLAOps.h"
#include "aten/bridge.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace torch_xla::aten {

XLAGeneratorImpl::XLAGeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl({c10::DeviceType::XLA, device},
                         c10::DispatchKeySet(c10::DispatchKey::XLA)) {}

void XLAGeneratorImpl::set_current_seed(uint64_t seed) { seed_ = state_ = seed; }

// The offset is the number of seeds that were drawn since the generator was seeded.
void XLAGeneratorImpl::set_offset(uint64_t offset) { state_ = tensor::NextRngState(seed_, offset); }

uint64_t XLAGeneratorImpl::get_offset() const { return tensor::RngStatesBetween(seed_, state_); }

uint64_t XLAGeneratorImpl::seed() {
  std::random_device source;
  set_current_seed((static_cast<uint64_t>(source()) << 32) | source());
  return seed_;
}

void XLAGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK(new_state.numel() == 16 && new_state.itemsize() == 1,
              "set_state: expected the 16 bytes that get_state gives, got ", new_state.numel(),
              " elements");
  std::memcpy(&seed_, new_state.data(), 8);
  std::memcpy(&state_, static_cast<const char*>(new_state.data()) + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> XLAGeneratorImpl::get_state() const {
  at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.mutable_data_ptr(), &seed_, 8);
  std::memcpy(static_cast<char*>(state.mutable_data_ptr()) + 8, &state_, 8);
  return state.getIntrusivePtr();
}

XLAGeneratorImpl* XLAGeneratorImpl::clone_impl() const {
  auto* copy = new XLAGeneratorImpl(device().index());
  copy->seed_ = seed_;
  copy->state_ = state_;
  return copy;
}

uint64_t XLAGeneratorImpl::Draw() {
  state_ = tensor::NextRngState(state_);
  return tensor::MixSeed(state_);
}

namespace {

thread_local std::optional<at::Tensor> seed_mask;

ir::Value Masked(ir::Value seed) {
  if (!seed_mask) return seed;
  const ir::ShapeRef shape = seed.shape();
  return tensor::MakeNode(&ir::ops::bitwise_xor_Tensor, {std::move(seed), GetIrValue(*seed_mask)},
                          {}, shape);
}

}  // namespace

std::optional<at::Tensor> SetSeedMask(std::optional<at::Tensor> mask) {
  return std::exchange(seed_mask, std::move(mask));
}

ir::Value DrawSeed(const std::optional<at::Generator>& generator, int device) {
  if (!generator || !generator->defined()) return Masked(tensor::DrawSeed(device));
  auto* impl = dynamic_cast<XLAGeneratorImpl*>(generator->unsafeGetGeneratorImpl());
  TORCH_CHECK(impl, "Expected a 'xla' device type for generator but found '",
              generator->device().type(), "'");
  uint64_t seed;
  {
    // The lock that PyTorch's own kernels and the methods of its Generator take.
    std::lock_guard<std::mutex> lock(impl->mutex_);
    seed = impl->Draw();
  }
  return Masked(tensor::SeedValue(seed));
}

const at::Generator& DefaultGenerator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto& generators = *new std::array<at::Generator, 128>;
  std::lock_guard<std::mutex> lock(mutex);
  at::Generator& generator = generators[static_cast<size_t>(std::max<int>(device, 0))];
  if (!generator.defined()) generator = at::make_generator<XLAGeneratorImpl>(device);
  return generator;
}

}  // namespace torch_xla::aten
