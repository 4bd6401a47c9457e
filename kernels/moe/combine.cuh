#pragma once

// After the tiles: each rank adds its tokens' slots up, in slot order and fp32, so that the result
// does not depend on who was first; and the counters go back to zero.

#include <cuda_bf16.h>

#include "config.hpp"
#include "epilogue.cuh"
#include "rank.cuh"
#include "route.cuh"

namespace xstage::moe::kernels {

/// All bits set is NaN in bf16.
__device__ __forceinline__ void fill_with_nan(void* row, std::int32_t bytes, int lane) {
    for (std::int32_t i = lane * 16; i < bytes; i += 512)
        device::st_weak_v4(static_cast<std::byte*>(row) + i, make_uint4(~0U, ~0U, ~0U, ~0U));
}

__device__ __forceinline__ void add_pair(float (&sum)[8], int i, std::uint32_t pair) {
    // A bf16 is the upper half of a float.
    sum[2 * i] += __uint_as_float(pair << 16);
    sum[2 * i + 1] += __uint_as_float(pair & 0xffff0000U);
}

/// Counted from the first thread of the math groups.
__device__ __forceinline__ int math_thread() {
    return static_cast<int>(threadIdx.x) - (kThreads - kMathThreads);
}

/// One warp a token.
__device__ __forceinline__ void combine(const Rank& me) {
    const KernelParams& p = me.p;
    const int lane = device::lane_id_again();
    const int tokens = me.tokens();
    const std::int32_t bytes = p.hidden * 2;
    const bool broken = me.broken();
    const auto* experts = me.at<std::int32_t>(p.at.experts);
    const int warps = p.blocks * (kMathThreads / 32);
    for (int t = math_thread() / 32 * p.blocks + me.cta(); t < tokens; t += warps) {
        std::byte* const y = static_cast<std::byte*>(me.args().y) + std::int64_t{t} * bytes;
        const std::int32_t expert = lane < p.top_k ? experts[std::int64_t{t} * p.top_k + lane] : -1;
        // An expert that nobody holds is a fault of the caller's, and must not look like a result.
        if (broken || __any_sync(0xffffffffU, expert >= p.experts)) {
            fill_with_nan(y, bytes, lane);
            continue;
        }
        // The shared expert's slot, if there is one, is the last.
        const bool given = expert >= 0 || (lane >= p.top_k && lane < p.slots);
        const unsigned slots = __ballot_sync(0xffffffffU, given);
        const std::byte* from = me.at<std::byte>(p.at.combine) + std::int64_t{t} * p.slots * bytes;
        for (std::int32_t i = lane * 16; i < bytes; i += 512) {
            float sum[8] = {};
#pragma unroll 8
            for (int s = 0; s < p.slots; ++s) {
                if ((slots >> s & 1U) == 0) continue;
                const uint4 v = device::ld_no_l1_v4(from + std::int64_t{s} * bytes + i);
                add_pair(sum, 0, v.x);
                add_pair(sum, 1, v.y);
                add_pair(sum, 2, v.z);
                add_pair(sum, 3, v.w);
            }
            device::st_weak_v4(y + i,
                               make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]),
                                          pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])));
        }
    }
}

/// Every CTA of the rank is past its last task.
__device__ __forceinline__ void reset_counters(const Rank& me) {
    const KernelParams& p = me.p;
    const int first = math_thread() * p.blocks + me.cta();
    const int step = kMathThreads * p.blocks;
    for (int i = first; i < p.experts; i += step) me.at<std::uint32_t>(p.at.sent)[i] = 0;
    for (int i = first; i < p.at.max_blocks; i += step) {
        me.at<std::uint32_t>(p.at.pulled)[i] = 0;
        me.at<std::uint32_t>(p.at.first_done)[i] = 0;
        me.at<std::uint32_t>(p.at.second_done)[i] = 0;
    }
    if (first == 0) me.control().next_task = 0;
}

/// The math groups of all CTAs. The other threads have ended by then: what they pulled has been
/// multiplied.
__device__ __forceinline__ void finish(const Rank& me) {
    meet<kMathThreads>(me, [&] {
        if (math_thread() < 32 && !me.broken()) barrier_with_peers(me);
    });
    reset_counters(me);
    combine(me);
}

}  // namespace xstage::moe::kernels
