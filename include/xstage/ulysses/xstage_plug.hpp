#pragma once

#include <string>

#include "xstage/ulysses.hpp"

namespace xstage::ulysses {

/// The attention kernel of xstage/attention.hpp: Hopper (sm_90a), bf16 and fp16, head_dim 64 or
/// 128, LSE and key lengths. It stores to ordinary and stitched outputs, and to peers, one clipped
/// tensor map each, its tiles alternating among them from the right neighbour's on. Throws Error
/// (kUnsupported) in a build without the kernel; on another GPU the first call does. `instance`
/// (attention_instances()) pins the tile, and with it a row's bits; by default every call's shape
/// chooses, so bits may differ between layouts by rounding.
Plug xstage_plug(const std::string& instance = {});

/// Why xstage_plug() would throw; empty when it would not.
std::string xstage_plug_missing();

}  // namespace xstage::ulysses
