#pragma once

#include <cstdint>

#include "config.hpp"
#include "xstage/device/mbarrier.cuh"

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

/// Full barriers count the producer's one arrival and its bytes; empty ones count one arrival per
/// warp, since a warp's own wait covers its own part of a product only.
template <class C>
__device__ __forceinline__ void init_barriers(SharedStorage<C>& shared) {
    constexpr int kWarpsPerGroup = 4;
    for (int g = 0; g < C::kMathGroups; ++g) {
        device::mbarrier_init(&shared.q_full[g], 1);
        device::mbarrier_init(&shared.q_empty[g], kWarpsPerGroup);
    }
    for (int i = 0; i < C::kSlots; ++i) {
        device::mbarrier_init(&shared.slot_full[i], 1);
        device::mbarrier_init(&shared.slot_empty[i], kWarpsPerGroup * C::kMathGroups);
    }
    device::fence_mbarrier_init_release_cluster();
}

}  // namespace xstage::attention
