#pragma once

// After the tiles: each rank adds its tokens' slots up, in slot order and fp32, so that the result
// does not depend on who was first; and the counters go back to zero.

#include <cuda_bf16.h>

#include "config.hpp"
#include "epilogue.cuh"
#include "rank.cuh"
#include "route.cuh"

namespace xstage::moe::kernels {

__device__ __forceinline__ void add_pair(float (&sum)[8], int i, std::uint32_t pair) {
    // A bf16 is the upper half of a float.
    sum[2 * i] += __uint_as_float(pair << 16);
    sum[2 * i + 1] += __uint_as_float(pair & 0xffff0000U);
}

/// Counted from the first thread of the math groups.
__device__ __forceinline__ int math_thread() {
    return static_cast<int>(threadIdx.x) - (kThreads - kMathThreads);
}

/// 16 bytes of a row that every slot of a token has, or has not: the sum of those in `slots`.
__device__ __forceinline__ uint4 sum_of_slots(const std::byte* from, std::int64_t pitch, int count,
                                              unsigned slots) {
    constexpr int kInFlight = 8;
    float sum[8] = {};
#pragma unroll 1
    for (int first = 0; first < count; first += kInFlight) {
        // No load depends on whether there is a slot, else each would be waited for by itself.
        uint4 v[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i)
            v[i] = device::ld_no_l1_v4(from + min(first + i, count - 1) * pitch);
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (first + i >= count || (slots >> (first + i) & 1U) == 0) continue;
            add_pair(sum, 0, v[i].x);
            add_pair(sum, 1, v[i].y);
            add_pair(sum, 2, v[i].z);
            add_pair(sum, 3, v[i].w);
        }
    }
    return make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]),
                      pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7]));
}

/// A warp takes pieces of tokens' rows, all of them or, where tokens are fewer than warps, a part.
__device__ __forceinline__ void combine(const Rank& me) {
    constexpr int kChunk = 512;  // bytes of a row that a warp's lanes hold
    constexpr int kMostChunks = 8;
    const KernelParams& p = me.p;
    const int lane = device::lane_id_again();
    const int tokens = me.tokens();
    const std::int32_t bytes = p.hidden * 2;
    const bool broken = me.broken();
    const auto* experts = me.at<std::int32_t>(p.at.experts);
    const int warps = p.blocks * (kMathThreads / 32);
    const int chunks = bytes / kChunk;
    const int share = static_cast<int>(std::int64_t{tokens} * chunks / warps);
    const int length = min(max(share, 1), kMostChunks);
    const int pieces = (chunks + length - 1) / length;
    for (int i = math_thread() / 32 * p.blocks + me.cta(); i < tokens * pieces; i += warps) {
        const int t = i / pieces;
        const std::int32_t begin = i % pieces * length * kChunk + lane * 16;
        const std::int32_t end = min((i % pieces + 1) * length * kChunk, bytes);
        std::byte* const y = static_cast<std::byte*>(me.args().y) + std::int64_t{t} * bytes;
        const std::int32_t expert = lane < p.top_k ? experts[std::int64_t{t} * p.top_k + lane] : -1;
        // An expert that nobody holds is a fault of the caller's, and must not look like a result.
        const bool fault = broken || __any_sync(0xffffffffU, expert >= p.experts);
        // The shared expert's slot, if there is one, is the last.
        const bool given = expert >= 0 || (lane >= p.top_k && lane < p.slots);
        const unsigned slots = __ballot_sync(0xffffffffU, given);
        const std::byte* from = me.at<std::byte>(p.at.combine) + std::int64_t{t} * p.slots * bytes;
#pragma unroll 1
        for (std::int32_t at = begin; at < end; at += kChunk) {
            uint4 sum = make_uint4(~0U, ~0U, ~0U, ~0U);  // NaN in bf16
            if (!fault) sum = sum_of_slots(from + at, bytes, p.slots, slots);
            device::st_weak_v4(y + at, sum);
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
