#pragma once

// Shared-memory barriers that count arrivals and bytes of bulk copies (PTX ISA 9.0, mbarrier).
// Waits here have no time limit: whoever they wait for runs in the same CTA or cluster, so a hang
// is a fault of the kernel and not of a peer.

#include <cstdint>

#include "xstage/device/ptx.cuh"

namespace xstage::device {

using MBarrier = std::uint64_t;

__device__ __forceinline__ void mbarrier_init(MBarrier* barrier, std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/// After the inits: other CTAs of the cluster and the copy engine see initialised barriers.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(MBarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/// One arrival that also announces bytes a bulk copy will bring.
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(MBarrier* barrier,
                                                             std::uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(MBarrier* barrier, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done != 0;
}

/// Until the phase of this parity is complete. A fresh barrier counts parity 1 as complete.
__device__ __forceinline__ void mbarrier_wait(MBarrier* barrier, std::uint32_t parity) {
    while (!mbarrier_try_wait(barrier, parity)) {
    }
}

}  // namespace xstage::device
