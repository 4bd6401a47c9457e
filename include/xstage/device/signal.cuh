#pragma once

// Signals between GPUs: the few instructions that the protocol needs, on 64-bit words of global
// memory, always at system scope since the other end may be a peer or the host. Source: PTX
// ISA 9.0.

#include <cstdint>

namespace xstage::device::sig {

__device__ __forceinline__ void st_release_sys(std::uint64_t* word, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void st_relaxed_sys(std::uint64_t* word, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ std::uint64_t ld_acquire_sys(const std::uint64_t* word) {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ std::uint64_t ld_relaxed_sys(const std::uint64_t* word) {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void fence_acq_rel_sys() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/// Orders bulk copies (async proxy) against ordinary accesses of this thread, both ways.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

/// Nanoseconds of this GPU's timer; for limits on waits only, since it ticks coarsely.
__device__ __forceinline__ std::uint64_t global_ns() {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}

}  // namespace xstage::device::sig
