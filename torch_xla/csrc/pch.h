// Precompiled for the layers that see torch; what most of their units need.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>
