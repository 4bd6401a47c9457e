#pragma once

namespace xstage::attention {

/// Broadcast, so that the compiler sees one value per warp and keeps it in a uniform register.
__device__ __forceinline__ int one_per_warp(int value) {
    return __shfl_sync(0xffffffffU, value, 0);
}

}  // namespace xstage::attention
