#pragma once

// One rank's share of the launch: its memory, and how its CTAs meet.

#include "config.hpp"
#include "params.hpp"
#include "xstage/device/ptx.cuh"
#include "xstage/device/warpgroup.cuh"

namespace xstage::moe::kernels {

/// Kept in shared memory: math threads have no register to spare for it.
struct RankPlace {
    const RankArgs* args;
    std::byte* memory;
    std::int32_t local;  ///< among the ranks of this device
    std::int32_t cta;    ///< among the CTAs of this rank
};

struct Rank {
    const KernelParams& p;
    const RankPlace& place;

    __device__ __forceinline__ const RankArgs& args() const { return *device::opaque(place.args); }
    __device__ __forceinline__ int cta() const { return place.cta; }
    template <class T>
    __device__ __forceinline__ T* at(std::int64_t offset) const {
        return reinterpret_cast<T*>(device::opaque(place.memory) + offset);
    }
    template <class T>
    __device__ __forceinline__ T* peer_at(int rank, std::int64_t offset) const {
        return reinterpret_cast<T*>(p.workspace[rank] + offset);
    }
    __device__ __forceinline__ Control& control() const { return *at<Control>(p.at.control); }
    __device__ __forceinline__ int tokens() const {
        const std::int32_t* const there = args().tokens_at;
        return there == nullptr ? args().tokens : min(max(*there, 0), p.max_tokens);
    }
    __device__ __forceinline__ bool broken() const {
        return device::ld_relaxed_gpu_u32(&control().broken) != 0;
    }
};

/// One thread, before __syncthreads.
__device__ __forceinline__ void find_place(const KernelParams& p, RankPlace& place) {
    place.local = static_cast<std::int32_t>(blockIdx.x) / p.blocks;
    place.cta = static_cast<std::int32_t>(blockIdx.x) % p.blocks;
    place.args = &p.rank[place.local];
    place.memory = p.workspace[p.rank[place.local].rank];
}

/// A wait within the rank ran out: the host's next look finds the group broken, and this rank late.
__device__ __forceinline__ void break_group(const Rank& me) {
    const KernelParams& p = me.p;
    fabric::Failure failure;
    failure.kind = fabric::FailureKind::kTimeout;
    failure.ranks = static_cast<std::uint16_t>(1U << me.args().rank);
    me.control().broken = 1;
    device::st_relaxed_sys_u64(&p.group.state[me.place.local].broken, failure.encode());
    device::st_release_sys_u64(&p.group.report[me.place.local].failure, failure.encode());
}

/// Until *counter is `value`; acquires. By one thread. All CTAs are resident, so only a fault of
/// the kernel makes this run out; the call is then marked as broken and goes on to its end. (A trap
/// would join the code of all roles, and cost the math threads their registers.)
__device__ __forceinline__ void await_count(const Rank& me, const std::uint32_t* counter,
                                            std::uint32_t value) {
    unsigned spins = 0;
    std::uint64_t start = 0;
    while (device::ld_acquire_gpu_u32(counter) != value) {
        if (++spins % 1024 != 0) continue;
        if (start == 0) start = device::global_ns();
        // A barrier with peers may take the group's limit; those behind it are given twice that.
        const bool broken = me.broken();  // then it is known already who was missing
        if (!broken && device::global_ns() - start < 2 * me.p.group.timeout_ns) continue;
        if (!broken) break_group(me);
        return;
    }
}

/// All CTAs of the rank meet. CTA 0 does `work` when all others have come and before any goes on.
/// Called by the last `kCount` threads of each CTA; the first of them waits. All their memory
/// accesses before are visible to all of them after.
template <int kCount, class Work>
__device__ __forceinline__ void meet(const Rank& me, Work&& work) {
    const auto together = [] { device::bar_sync(kBarrierMeet, kCount); };
    const bool leads = threadIdx.x == kThreads - kCount;
    Control& control = me.control();
    std::uint32_t epoch = 0;
    together();
    if (leads) {
        // Before our own arrival the epoch cannot move.
        epoch = device::ld_relaxed_gpu_u32(&control.epoch);
        device::red_release_gpu_add_u32(&control.met, 1);
    }
    if (me.cta() == 0) {
        if (leads) await_count(me, &control.met, static_cast<std::uint32_t>(me.p.blocks));
        together();
        work();
        together();
        if (leads) {
            control.met = 0;
            device::st_release_gpu_u32(&control.epoch, epoch + 1);
        }
    } else if (leads) {
        await_count(me, &control.epoch, epoch + 1);
    }
    together();
}

}  // namespace xstage::moe::kernels
