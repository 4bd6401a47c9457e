#pragma once

#include <cstdint>

#include "config.hpp"
#include "xstage/device/mbarrier.cuh"
#include "xstage/device/warpgroup.cuh"

namespace xstage::attention {

/// A place in the ring of key and value blocks. Producer and math warps step through the same
/// sequence of blocks, so each keeps its own place and only the barriers connect them.
template <class C>
struct RingPlace {
    std::int32_t slot = 0;
    std::uint32_t parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == C::kSlots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/// One arrival per warp: a warp's own wait covers its own part of a product only.
template <class C>
inline constexpr int kSlotArrivals = 4 * C::kMathGroups* C::kCluster;

template <class C>
__device__ __forceinline__ void init_barriers(SharedStorage<C>& shared) {
    for (int g = 0; g < C::kMathGroups; ++g) {
        device::mbarrier_init(&shared.q_full[g], 1);
        device::mbarrier_init(&shared.q_empty[g], 4);
    }
    for (int i = 0; i < C::kSlots; ++i) {
        device::mbarrier_init(&shared.slot_full[i], 1);
        device::mbarrier_init(&shared.slot_empty[i], kSlotArrivals<C>);
    }
    device::fence_mbarrier_init_release_cluster();
}

/// By every lane of a math warp. In a cluster the other CTAs write into this slot too, so their
/// producers have to hear of it.
template <class C>
__device__ __forceinline__ void release_slot(SharedStorage<C>& shared, std::int32_t slot,
                                             int lane) {
    if constexpr (C::kCluster == 1) {
        if (lane == 0) device::mbarrier_arrive(&shared.slot_empty[slot]);
    } else {
        if (lane < C::kCluster) device::mbarrier_arrive_cluster(&shared.slot_empty[slot], lane);
    }
}

}  // namespace xstage::attention
