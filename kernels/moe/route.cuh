#pragma once

// Before the tiles: each rank sorts its routes by expert and tells every owner where its routes
// lie. The order within an expert is whatever the atomics make it; no result depends on it, since
// a row's sums never see another row.

#include "config.hpp"
#include "rank.cuh"
#include "xstage/device/fabric.cuh"

namespace xstage::moe::kernels {

/// Sums count[0..n) up in place to what stands before each; returns the total. All threads.
__device__ __forceinline__ std::int32_t scan_in_place(std::int32_t* count, int n,
                                                      std::int32_t* warp_sum) {
    const int per_thread = (n + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * per_thread, n);
    const int end = min(begin + per_thread, n);
    std::int32_t mine = 0;
    for (int i = begin; i < end; ++i) mine += count[i];
    std::int32_t upto = mine;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const std::int32_t below = __shfl_up_sync(0xffffffffU, upto, step);
        if (lane >= step) upto += below;
    }
    if (lane == 31) warp_sum[threadIdx.x / 32] = upto;
    __syncthreads();
    std::int32_t before = upto - mine;
    std::int32_t total = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
        if (w < static_cast<int>(threadIdx.x) / 32) before += warp_sum[w];
        total += warp_sum[w];
    }
    for (int i = begin; i < end; ++i) {
        const std::int32_t value = count[i];
        count[i] = before;
        before += value;
    }
    __syncthreads();
    return total;
}

__device__ __forceinline__ bool is_routed(const KernelParams& p, std::int32_t expert) {
    return expert >= 0 && expert < p.experts;
}

/// The blocks of every held expert, and groups of kCtas of them, from what the ranks say they send.
/// CTA 0.
template <int kCtas>
__device__ __forceinline__ void lay_out_rows(const Rank& me, RouteScratch& scratch) {
    const KernelParams& p = me.p;
    const auto* arrived = me.at<std::int32_t>(p.at.arrived);
    auto* row_count = me.at<std::int32_t>(p.at.row_count);
    auto* row_begin = me.at<std::int32_t>(p.at.row_begin);
    const int shared = p.held_experts - p.local_experts;
    for (int e = static_cast<int>(threadIdx.x); e < p.held_experts; e += kThreads) {
        std::int32_t rows = e < shared ? me.tokens() : 0;
        for (int r = 0; e >= shared && r < p.world; ++r) {
            const std::int32_t* from = arrived + r * (p.local_experts + 1) + e - shared;
            rows += __ldcg(from + 1) - __ldcg(from);
        }
        row_count[e] = rows;
        scratch.count[e] = (rows + kTileRows - 1) / kTileRows;
        if constexpr (kCtas > 1) scratch.first[e] = (scratch.count[e] + kCtas - 1) / kCtas;
    }
    __syncthreads();
    const std::int32_t total = scan_in_place(scratch.count, p.held_experts, scratch.warp_sum);
    for (int e = static_cast<int>(threadIdx.x); e < p.held_experts; e += kThreads)
        row_begin[e] = scratch.count[e];
    if (threadIdx.x == 0) row_begin[p.held_experts] = total;
    if constexpr (kCtas > 1) {
        auto* pair_begin = me.at<std::int32_t>(p.at.pair_begin);
        const std::int32_t pairs = scan_in_place(scratch.first, p.held_experts, scratch.warp_sum);
        for (int e = static_cast<int>(threadIdx.x); e < p.held_experts; e += kThreads)
            pair_begin[e] = scratch.first[e];
        if (threadIdx.x == 0) pair_begin[p.held_experts] = pairs;
    }
}

/// One warp runs the fabric's barrier for this rank. False: the group is broken.
__device__ __forceinline__ void barrier_with_peers(const Rank& me) {
    device::FabricPort port(me.p.group, me.place.local, me.p.call);
    const bool ok =
        !port.broken() && fabric::protocol::run(fabric::protocol::barrier_program(), port);
    if (!ok && threadIdx.x % 32 == 0) me.control().broken = 1;
}

/// All threads of all CTAs. After it row_begin and row_count hold, and peers may be read.
template <int kCtas>
__device__ __forceinline__ void route(const Rank& me, RouteScratch& scratch) {
    const KernelParams& p = me.p;
    const int thread = static_cast<int>(threadIdx.x);
    const auto* experts = me.at<std::int32_t>(p.at.experts);
    auto* sent = me.at<std::int32_t>(p.at.sent);
    const std::int32_t routes = me.tokens() * p.top_k;
    const std::int32_t share = (routes + p.blocks - 1) / p.blocks;
    const std::int32_t begin = min(me.cta() * share, routes);
    const std::int32_t end = min(begin + share, routes);

    for (int e = thread; e < p.experts; e += kThreads) scratch.count[e] = 0;
    __syncthreads();
    for (std::int32_t i = begin + thread; i < end; i += kThreads) {
        const std::int32_t e = experts[i];
        if (is_routed(p, e)) atomicAdd(&scratch.count[e], 1);
    }
    __syncthreads();
    // What other CTAs have counted of an expert so far is where ours begin.
    for (int e = thread; e < p.experts; e += kThreads)
        scratch.first[e] = scratch.count[e] == 0 ? 0 : atomicAdd(&sent[e], scratch.count[e]);
    meet<kThreads>(me, [] {});

    for (int e = thread; e < p.experts; e += kThreads) scratch.count[e] = __ldcg(&sent[e]);
    __syncthreads();
    const std::int32_t total = scan_in_place(scratch.count, p.experts, scratch.warp_sum);
    auto* sorted = me.at<std::int32_t>(p.at.sorted);
    if (me.cta() == 0) {
        // A peer learns where its experts' routes begin, and where the last one's end.
        const int width = p.local_experts + 1;
        for (int i = thread; i < p.world * width; i += kThreads) {
            const int owner = i / width;
            const int e = owner * p.local_experts + i % width;
            me.peer_at<std::int32_t>(owner, p.at.arrived)[me.args().rank * width + i % width] =
                e < p.experts ? scratch.count[e] : total;
        }
    }
    for (int e = thread; e < p.experts; e += kThreads) scratch.first[e] += scratch.count[e];
    __syncthreads();
    for (std::int32_t i = begin + thread; i < end; i += kThreads) {
        const std::int32_t e = experts[i];
        if (is_routed(p, e)) sorted[atomicAdd(&scratch.first[e], 1)] = i;
    }
    meet<kThreads>(me, [&] {
        if (thread < 32) barrier_with_peers(me);
        __syncthreads();
        if (!me.broken()) lay_out_rows<kCtas>(me, scratch);
    });
}

}  // namespace xstage::moe::kernels
