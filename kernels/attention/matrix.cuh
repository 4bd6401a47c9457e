#pragma once

// The two matrix products of a key block, on CuTe's wgmma instructions.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <utility>

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // 80 keys is not among the default shapes
#include <cute/arch/mma_sm90_gmma.hpp>

#include "xstage/device/warpgroup.cuh"

namespace xstage::attention {

namespace gmma = cute::SM90::GMMA;

/// Instruction shapes by element and width. Scores takes both operands from shared memory,
/// RegisterScores A from registers; Output takes A from registers and B as it lies, keys by
/// columns.
template <class Element, int kWidth>
struct Scores;
template <class Element, int kWidth>
struct RegisterScores;
template <class Element, int kWidth>
struct Output;

#define XSTAGE_SCORES(width)                                                           \
    template <>                                                                        \
    struct Scores<__nv_bfloat16, width>                                                \
        : gmma::MMA_64x##width##x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K> {}; \
    template <>                                                                        \
    struct Scores<__half, width>                                                       \
        : gmma::MMA_64x##width##x16_F32F16F16_SS<gmma::Major::K, gmma::Major::K> {};
#define XSTAGE_REGISTER_SCORES(width)                                                  \
    template <>                                                                        \
    struct RegisterScores<__nv_bfloat16, width>                                        \
        : gmma::MMA_64x##width##x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::K> {}; \
    template <>                                                                        \
    struct RegisterScores<__half, width>                                               \
        : gmma::MMA_64x##width##x16_F32F16F16_RS<gmma::Major::K, gmma::Major::K> {};
#define XSTAGE_OUTPUT(width)                                                            \
    template <>                                                                         \
    struct Output<__nv_bfloat16, width>                                                 \
        : gmma::MMA_64x##width##x16_F32BF16BF16_RS<gmma::Major::K, gmma::Major::MN> {}; \
    template <>                                                                         \
    struct Output<__half, width>                                                        \
        : gmma::MMA_64x##width##x16_F32F16F16_RS<gmma::Major::K, gmma::Major::MN> {};

XSTAGE_SCORES(80)
XSTAGE_SCORES(128)
XSTAGE_REGISTER_SCORES(128)
XSTAGE_OUTPUT(64)
XSTAGE_OUTPUT(128)
#undef XSTAGE_SCORES
#undef XSTAGE_REGISTER_SCORES
#undef XSTAGE_OUTPUT

namespace detail {

template <class Instruction, std::size_t... I>
__device__ __forceinline__ void multiply_ss(std::uint64_t a, std::uint64_t b,
                                            float (&d)[sizeof...(I)], gmma::ScaleOut keep,
                                            std::index_sequence<I...>) {
    Instruction::fma(a, b, d[I]..., keep);
}

template <class Instruction, std::size_t... I>
__device__ __forceinline__ void multiply_rs(const std::uint32_t* a, std::uint64_t b,
                                            float (&d)[sizeof...(I)], gmma::ScaleOut keep,
                                            std::index_sequence<I...>) {
    Instruction::fma(a[0], a[1], a[2], a[3], b, d[I]..., keep);
}

}  // namespace detail

/// Tells the compiler that these registers change outside of its sight, so that no read or write of
/// them crosses the start or the end of an asynchronous product.
template <class T, int N>
__device__ __forceinline__ void fence_registers(T (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(values[i]);
}

/// Starts S = Q K^T of one key block. `q` and `k` are descriptors of panel 0.
template <class C>
__device__ __forceinline__ void start_scores(float (&s)[C::kKeys / 2], std::uint64_t q,
                                             std::uint64_t k) {
    using Instruction = Scores<typename C::Element, C::kKeys>;
    fence_registers(s);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 16; ++i) {
        // 16 columns are 32 bytes of a swizzled row; the next panel follows all rows of this one.
        const int panel = i / 4;
        const int column_bytes = i % 4 * 32;
        detail::multiply_ss<Instruction>(q + ((panel * C::kGroupRows * 128 + column_bytes) >> 4),
                                         k + ((panel * C::kKeys * 128 + column_bytes) >> 4), s,
                                         i == 0 ? gmma::ScaleOut::Zero : gmma::ScaleOut::One,
                                         std::make_index_sequence<C::kKeys / 2>{});
    }
    cute::warpgroup_commit_batch();
}

/// The same with Q as A fragments of 16 columns each.
template <class C>
__device__ __forceinline__ void start_scores(float (&s)[C::kKeys / 2],
                                             std::uint32_t (&q)[C::kHeadDim / 4], std::uint64_t k) {
    using Instruction = RegisterScores<typename C::Element, C::kKeys>;
    fence_registers(s);
    fence_registers(q);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 16; ++i) {
        detail::multiply_rs<Instruction>(q + 4 * i,
                                         k + ((i / 4 * C::kKeys * 128 + i % 4 * 32) >> 4), s,
                                         i == 0 ? gmma::ScaleOut::Zero : gmma::ScaleOut::One,
                                         std::make_index_sequence<C::kKeys / 2>{});
    }
    cute::warpgroup_commit_batch();
}

/// Starts O += P V of one key block. `v` is the descriptor of the block's first key.
template <class C>
__device__ __forceinline__ void start_output(float (&o)[C::kHeadDim / 2],
                                             std::uint32_t (&p)[C::kKeys / 4], std::uint64_t v) {
    using Instruction = Output<typename C::Element, C::kHeadDim>;
    fence_registers(o);
    fence_registers(p);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i) {
        detail::multiply_rs<Instruction>(p + 4 * i, v + ((i * 16 * 128) >> 4), o,
                                         gmma::ScaleOut::One,
                                         std::make_index_sequence<C::kHeadDim / 2>{});
    }
    cute::warpgroup_commit_batch();
}

/// Until at most N of the latest started products are unfinished.
template <int N>
__device__ __forceinline__ void wait_products() {
    cute::warpgroup_wait<N>();
}

}  // namespace xstage::attention
