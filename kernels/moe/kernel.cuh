#pragma once

// One MegaMoE layer of all ranks of a device in one launch: rank = block / blocks per rank. A CTA
// lives as long as the launch. First all threads sort the routes; then one thread claims tiles, one
// feeds them, two warps pull rows from the peers and two warpgroups multiply; last, all add up.

#include "combine.cuh"
#include "config.hpp"
#include "dispatch.cuh"
#include "feeder.cuh"
#include "math.cuh"
#include "rank.cuh"
#include "route.cuh"

namespace xstage::moe::kernels {

/// Where the shared memory's contents begin. From an opaque `raw`, nothing is kept from earlier.
__device__ __forceinline__ SharedStorage& storage(unsigned char* raw) {
    const std::uint32_t misaligned = device::shared_address(raw) % 1024;
    return *reinterpret_cast<SharedStorage*>(raw + (1024 - misaligned) % 1024);
}
__device__ __forceinline__ RankPlace& place_in(SharedStorage& shared) {
    static_assert(sizeof(RankPlace) <= sizeof shared.place);
    return *reinterpret_cast<RankPlace*>(shared.place);
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) moe_kernel(const __grid_constant__ KernelParams p) {
    extern __shared__ unsigned char raw[];
    SharedStorage& shared = storage(raw);
    RankPlace& place = place_in(shared);
    if (threadIdx.x == 0) {
        init_barriers<C>(shared);
        find_place(p, place);
        if constexpr (C::kStamped)
            for (BurstMark& burst : shared.burst) burst.before = 0;
    }
    __syncthreads();
    const Rank me{p, place};
    route<C::kCtas>(me, *reinterpret_cast<RouteScratch*>(&shared));
    device::fence_proxy_async_shared();  // the copy engine writes next where routes were sorted
    bool broken = me.broken();
    if constexpr (C::kCtas > 1) {
        if (threadIdx.x == 0) shared.broken = broken ? 1 : 0;
        device::cluster_sync();
        broken = device::ld_shared_u32_of(&shared.broken, 0) != 0;
    } else {
        __syncthreads();
    }

    // Broadcast, so that the compiler sees one value per warp.
    const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp < 4) {
        device::set_max_registers_less<kFeederRegisters>();
        if (broken) return;
        if (warp == 0) {
            if (threadIdx.x % 32 == 0) Feeder<C>{me, shared, {}}.run();
        } else if (warp == 1) {
            if (threadIdx.x % 32 == 0) claim_tasks<C>(me, shared);
        } else {
            Dispatch<C>{me}.run(warp - 2);
        }
    } else {
        device::set_max_registers_more<kMathRegisters>();
        if (!broken) MathGroup<C>{me, shared, warp / 4 - 1, warp % 4, {}}.run();
        finish(Rank{p, place_in(storage(device::opaque(raw)))});
    }
}

}  // namespace xstage::moe::kernels
