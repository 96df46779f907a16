#include "tensor/growths.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace torch_xla::tensor {
namespace {

/// A loop must grow for this many rounds and have this many operations. Where gradients are
/// recorded, parts of a single step may also grow integers, so more rounds are needed.
constexpr uint64_t kRounds = 3;
constexpr uint64_t kRoundsWithGradients = 8;
constexpr uint64_t kLoop = 48;

}  // namespace

bool Growths::Grows(const ir::Value& value, uint64_t now, uint64_t floor, uint64_t* period) {
  std::lock_guard lock(mutex_);
  Growth& place = At(value.node->location());
  const int64_t numel = value.shape()->numel;
  const bool longer = std::exchange(place.numel, numel) < numel;
  *period = now - std::exchange(place.last, now);
  place.rounds = longer && *period < now - floor ? place.rounds + 1 : 1;
  place.run = longer ? place.run + 1 : 1;
  if (now - floor < kLoop) return false;
  if (c10::GradMode::is_enabled() &&
      place.run <= std::max(kRoundsWithGradients, 2 * place.spared)) {
    return false;
  }
  if (place.found) {
    *period = 0;
    return true;
  }
  return place.found = place.rounds >= kRounds;
}

void Growths::BackwardBegins() {
  std::lock_guard lock(mutex_);
  for (Growth& place : places_) place.spared = std::max(place.spared, place.run);
}

void Growths::Ran() {
  std::lock_guard lock(mutex_);
  for (Growth& place : places_) place.run = 0;
}

void Growths::Read() {
  std::lock_guard lock(mutex_);
  for (Growth& place : places_) {
    place.run = place.rounds = 0;
    place.found = false;
  }
}

void Growths::Forget() {
  std::lock_guard lock(mutex_);
  places_ = {};
}

Growths::Growth& Growths::At(const void* site) {
  auto* known = std::ranges::find(places_, site, &Growth::site);
  if (known != places_.end()) return *known;
  Growth& place = places_[next_++ % places_.size()];
  place = {.site = site};
  return place;
}

Growths& GrowthsOf(int device) {
  static auto& all = *new std::array<Growths, 256>;
  return all[static_cast<uint8_t>(device)];
}

}  // namespace torch_xla::tensor
