#pragma once

// The products of one stage, on CuTe's wgmma instructions: A is 64 rows, B 128 or 256 rows, both
// 128 bytes wide as the copy engine laid them.

#include <cstdint>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "config.hpp"
#include "xstage/device/warpgroup.cuh"

namespace xstage::moe::kernels {

namespace gmma = cute::SM90::GMMA;

using WideBf16 = gmma::MMA_64x256x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
using HalfFp8 = gmma::MMA_64x128x32_F32E4M3E4M3_SS_TN<>;

/// These registers change outside of the compiler's sight: no access crosses this.
template <int N>
__device__ __forceinline__ void fence_registers(float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(values[i]);
}

namespace detail {
template <class Instruction, std::size_t... I>
__device__ __forceinline__ void multiply(std::uint64_t a, std::uint64_t b, float (&d)[sizeof...(I)],
                                         gmma::ScaleOut keep, std::index_sequence<I...>) {
    Instruction::fma(a, b, d[I]..., keep);
}
}  // namespace detail

/// Starts d (+)= A B^T over 128 bytes of depth, in four steps of 32 bytes.
template <class Instruction, int N>
__device__ __forceinline__ void start_product(float (&d)[N], std::uint64_t a, std::uint64_t b,
                                              bool keep) {
    fence_registers(d);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const auto out = i > 0 || keep ? gmma::ScaleOut::One : gmma::ScaleOut::Zero;
        detail::multiply<Instruction>(a + i * (32 >> 4), b + i * (32 >> 4), d, out,
                                      std::make_index_sequence<N>{});
    }
    cute::warpgroup_commit_batch();
}

/// Until at most N of the latest started products are unfinished.
template <int N>
__device__ __forceinline__ void wait_products() {
    cute::warpgroup_wait<N>();
}

}  // namespace xstage::moe::kernels
