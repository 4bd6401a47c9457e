#pragma once

#include <cuda_runtime_api.h>

#include "xstage/stamp_layout.hpp"

namespace xstage::test {

/// `ctas` producers stamp `bursts` bursts of `bytes` to `to`, of 256 threads each, with a pause of
/// `pause_cycles` between them; producer p's bursts go to destination p + 5.
cudaError_t launch_stamped_stores(StampBuffer buffer, char* to, unsigned bytes, int bursts,
                                  unsigned pause_cycles, int ctas);

}  // namespace xstage::test
