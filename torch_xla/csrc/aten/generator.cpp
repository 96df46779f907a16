#include "aten/generator.h"

#include <ATen/ops/empty.h>

#include <array>
#include <mutex>
#include <utility>

#include "XLAOps.h"
#include "aten/bridge.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace torch_xla::aten {

XLAGeneratorImpl::XLAGeneratorImpl(c10::DeviceIndex device, bool of_device)
    : c10::GeneratorImpl({c10::DeviceType::XLA, device},
                         c10::DispatchKeySet(c10::DispatchKey::XLA)),
      of_device_(of_device) {}

void XLAGeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = state_ = seed;
  if (of_device_) tensor::SetRngSeed(device().index(), seed);
}

uint64_t XLAGeneratorImpl::current_seed() const {
  return of_device_ ? tensor::GetRngSeed(device().index()) : seed_;
}

// The offset is the number of seeds that were drawn since the generator was seeded.
void XLAGeneratorImpl::set_offset(uint64_t offset) {
  state_ = tensor::NextRngState(current_seed(), offset);
  if (of_device_) tensor::SetRngSeed(device().index(), state_);
}

uint64_t XLAGeneratorImpl::get_offset() const {
  return of_device_ ? 0 : tensor::RngStatesBetween(seed_, state_);
}

uint64_t XLAGeneratorImpl::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

// As torch.xla.get_rng_state(): a seed, and the offset from it.
void XLAGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK(new_state.numel() == 16 && new_state.itemsize() == 1,
              "set_state: expected the 16 bytes that get_state gives, got ", new_state.numel(),
              " elements");
  std::array<uint64_t, 2> words;
  std::memcpy(words.data(), new_state.data(), 16);
  set_current_seed(words[0]);
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> XLAGeneratorImpl::get_state() const {
  at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte));
  const std::array<uint64_t, 2> words = {current_seed(), get_offset()};
  std::memcpy(state.mutable_data_ptr(), words.data(), 16);
  return state.getIntrusivePtr();
}

XLAGeneratorImpl* XLAGeneratorImpl::clone_impl() const {
  auto* copy = new XLAGeneratorImpl(device().index());
  copy->set_current_seed(current_seed());
  copy->set_offset(get_offset());
  return copy;
}

ir::Value XLAGeneratorImpl::DrawSeed() {
  if (of_device_) return tensor::DrawSeed(device().index());
  // The lock that PyTorch's own kernels and the methods of its Generator take.
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = tensor::NextRngState(state_);
  return tensor::SeedValue(tensor::MixSeed(state_));
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
  return Masked(impl->DrawSeed());
}

const at::Generator& DefaultGenerator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto& generators = *new std::array<at::Generator, 128>;
  std::lock_guard<std::mutex> lock(mutex);
  at::Generator& generator = generators[static_cast<size_t>(std::max<int>(device, 0))];
  if (!generator.defined()) generator = at::make_generator<XLAGeneratorImpl>(device, true);
  return generator;
}

}  // namespace torch_xla::aten
