#pragma once

#include <cstdint>

#include "params.hpp"

namespace xstage::probe {

/// A map of bf16 rows of 4 KiB over `bytes` at `base`, in boxes of 32 rows x 128 bytes (the path
/// Tensor of xstage/device/store_path.cuh). Throws Error(kUnsupported) where the driver has none.
TensorMap window_tensor_map(void* base, std::uint64_t bytes);

}  // namespace xstage::probe
