#pragma once

// What a warpgroup (four consecutive warps) of sm_90a does together: registers, named barriers,
// tensor core operands. The matrix instructions themselves come from CuTe.

#include <cstdint>

#include "xstage/device/ptx.cuh"

namespace xstage::device {

inline constexpr int kWarpgroupThreads = 128;

template <int N>
__device__ __forceinline__ void set_max_registers_less() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void set_max_registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/// Counts this thread in at named barrier `id` and goes on.
__device__ __forceinline__ void bar_arrive(std::uint32_t id, std::uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Stores a value that is below zero, else nothing.
__device__ __forceinline__ void st_shared_if_negative(float* address, float value) {
    asm volatile(
        "{\n"
        ".reg .pred negative;\n"
        "setp.lt.f32 negative, %1, 0f00000000;\n"
        "@negative st.volatile.shared::cta.f32 [%0], %1;\n"
        "}" ::"r"(shared_address(address)),
        "f"(value)
        : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, std::uint32_t r0,
                                            std::uint32_t r1, std::uint32_t r2, std::uint32_t r3) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r0), "r"(r1), "r"(r2), "r"(r3)
        : "memory");
}

/// Loads what stmatrix_x4 stores.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t address, std::uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// 2^x to about 2 ulp; -inf gives 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Descriptor of a matrix operand in shared memory, in rows of 128 bytes swizzled by 128 bytes.
/// For an operand whose contiguous dimension is not the summed one, `panel_bytes` is the way from
/// one panel of 64 columns to the next; else it is unused. Eight rows are 1024 bytes.
/// Source: PTX ISA 9.0, "Matrix descriptor format" of wgmma.
__device__ __forceinline__ std::uint64_t matrix_descriptor(const void* shared,
                                                           std::uint32_t panel_bytes) {
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
    constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4} << 32;
    // In a cluster a shared address carries the CTA's rank in its upper bits, which would fall into
    // the descriptor's other fields: 14 bits are the address, the rest is cut.
    const std::uint32_t address = (shared_address(shared) >> 4) & 0x3fffU;
    return kSwizzle128 | kEightRows | (std::uint64_t{panel_bytes >> 4} << 16) | address;
}

}  // namespace xstage::device
