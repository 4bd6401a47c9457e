#pragma once

// Warp-wide products and copies to shared memory of every GPU since sm_80, beside the ones in
// ptx.cuh.

#include <cstdint>

#include "xstage/device/ptx.cuh"

namespace xstage::device {

/// d += a (16x16, row) * b (16x8, column), fp16 in and f32 out, one warp.
__device__ __forceinline__ void mma_m16n8k16_fp16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// 16 bytes to shared memory, past L1; zeros where `valid` is false, and nothing is read then.
__device__ __forceinline__ void cp_async_16(std::uint32_t shared, const void* global, bool valid) {
    const std::uint32_t bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Until at most N of this thread's latest groups are on their way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace xstage::device
