#pragma once

// Pulls the rows of this rank's experts from their owners into the pool, in the order of the
// blocks, so that the first tiles start while later rows are under way.

#include "config.hpp"
#include "rank.cuh"
#include "xstage/device/ptx.cuh"

namespace xstage::moe::kernels {

/// The last held expert whose first block is not after `block` and that has blocks.
__device__ __forceinline__ int expert_of(const std::int32_t* row_begin, int experts,
                                         std::int32_t block) {
    int low = 0;
    int high = experts;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (row_begin[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/// The same by a whole warp, whose lanes look at all experts side by side.
__device__ __forceinline__ int expert_of_warp(const std::int32_t* row_begin, int experts,
                                              std::int32_t block) {
    int upto = 0;
#pragma unroll 4
    for (int first = 0; first < experts; first += 32) {
        const int e = first + device::lane_id_again();
        const bool not_after = e < experts && __ldcg(row_begin + e) <= block;
        upto += __popc(__ballot_sync(0xffffffffU, not_after));
    }
    return upto - 1;
}

__device__ __forceinline__ std::int32_t rows_of_block(const Rank& me, int expert,
                                                      std::int32_t block) {
    const std::int32_t before =
        (block - me.at<std::int32_t>(me.p.at.row_begin)[expert]) * kTileRows;
    return min(kTileRows, me.at<std::int32_t>(me.p.at.row_count)[expert] - before);
}

/// A route (token * slots + slot) packed with the rank it comes from.
__device__ __forceinline__ std::uint32_t pack_route(int rank, std::int32_t route) {
    return static_cast<std::uint32_t>(rank) << 28 | static_cast<std::uint32_t>(route);
}
__device__ __forceinline__ int rank_of(std::uint32_t packed) {
    return static_cast<int>(packed >> 28);
}
__device__ __forceinline__ std::int32_t route_of(std::uint32_t packed) {
    return static_cast<std::int32_t>(packed & 0x0fffffffU);
}

template <class C>
struct Dispatch {
    const Rank& me;

    __device__ __forceinline__ static int lane() { return device::lane_id_again(); }

    /// Row `index` of a held expert: the ranks' rows one after the other, this rank's first and
    /// then onward, so that not all pull from one rank at once.
    __device__ __forceinline__ std::uint32_t find(int expert, std::int32_t index) const {
        const KernelParams& p = me.p;
        expert -= p.held_experts - p.local_experts;
        if (expert < 0) return pack_route(me.args().rank, index * p.slots + p.top_k);
        const int width = p.local_experts + 1;
        const auto* arrived = me.at<std::int32_t>(p.at.arrived) + expert;
#pragma unroll 1
        for (int step = 0; step < p.world; ++step) {
            const int rank = (me.args().rank + step) % p.world;
            const std::int32_t first = __ldcg(arrived + rank * width);
            const std::int32_t count = __ldcg(arrived + rank * width + 1) - first;
            if (index < count) {
                const auto* sorted = me.peer_at<std::int32_t>(rank, p.at.sorted);
                const std::int32_t at = __ldcg(sorted + first + index);  // token * top_k + slot
                return pack_route(rank, at + at / p.top_k * (p.slots - p.top_k));
            }
            index -= count;
        }
        return 0;  // not reached: the counts are what the rows were laid out by
    }

    /// What a row's activations are multiplied with.
    __device__ __forceinline__ float weight_of(std::uint32_t packed) const {
        const KernelParams& p = me.p;
        const std::int32_t token = route_of(packed) / p.slots;
        const std::int32_t slot = route_of(packed) - token * p.slots;
        if (slot == p.top_k) return 1;
        const float* weights = me.peer_at<float>(rank_of(packed), p.at.weights);
        return __ldcg(weights + std::int64_t{token} * p.top_k + slot);
    }

    __device__ __forceinline__ void copy_row(const std::byte* from, std::byte* to,
                                             std::int32_t bytes) const {
        constexpr int kInFlight = 4;
#pragma unroll 1
        for (std::int32_t at = lane() * 16; at < bytes; at += kInFlight * 512) {
            uint4 piece[kInFlight];
#pragma unroll
            for (int i = 0; i < kInFlight; ++i)
                if (at + i * 512 < bytes) piece[i] = device::ld_no_l1_v4(from + at + i * 512);
#pragma unroll
            for (int i = 0; i < kInFlight; ++i)
                if (at + i * 512 < bytes) device::st_weak_v4(to + at + i * 512, piece[i]);
        }
    }

    __device__ __forceinline__ void pull_row(std::uint32_t packed, std::int32_t slot,
                                             std::int32_t row) const {
        const KernelParams& p = me.p;
        const int rank = rank_of(packed);
        const std::int64_t token = route_of(packed) / p.slots;
        const std::int64_t bytes = std::int64_t{p.hidden} * C::kElementBytes;
        copy_row(me.peer_at<std::byte>(rank, p.at.x) + token * bytes,
                 me.at<std::byte>(p.at.pool_x) + (std::int64_t{slot} * kTileRows + row) * bytes,
                 static_cast<std::int32_t>(bytes));
        if constexpr (C::kScaled) {
            const int groups = p.hidden / kScaleGroup;
            const float* from = me.peer_at<float>(rank, p.at.x_scale) + token * groups;
            float* to =
                me.at<float>(p.at.pool_x_scale) + std::int64_t{slot} * groups * kTileRows + row;
#pragma unroll 1
            for (int g = lane(); g < groups; g += 32) to[g * kTileRows] = __ldcg(from + g);
        }
    }

    /// Rows [first, first + most) of a block, as far as it has them.
    __device__ __forceinline__ void pull(std::int32_t block, std::int32_t first, int most) const {
        const KernelParams& p = me.p;
        const auto* row_begin = me.at<std::int32_t>(p.at.row_begin);
        const int expert = expert_of_warp(row_begin, p.held_experts, block);
        const std::int32_t rows = min(most, rows_of_block(me, expert, block) - first);
        if (rows <= 0) return;
        const std::int32_t slot = block % p.at.ring_blocks;
        if (block >= p.at.ring_blocks) {
            // The slot's last rows must be through Linear-2.
            const std::int32_t before = block - p.at.ring_blocks;
            const int owner = expert_of(row_begin, p.held_experts, before);
            const int groups = rows_of_block(me, owner, before) > kGroupRows ? 2 : 1;
            if (lane() == 0)
                await_count(me, me.at<std::uint32_t>(p.at.second_done) + before,
                            static_cast<std::uint32_t>(groups * (p.hidden / kTileColumns)));
            __syncwarp();
        }
        std::uint32_t packed = 0;
        if (lane() < rows) {
            packed = find(expert, (block - row_begin[expert]) * kTileRows + first + lane());
            const std::int64_t row = std::int64_t{slot} * kTileRows + first + lane();
            me.at<float>(p.at.row_weight)[row] = weight_of(packed);
            me.at<std::uint32_t>(p.at.row_route)[row] = packed;
        }
#pragma unroll 1
        for (int i = 0; i < rows; ++i)
            pull_row(__shfl_sync(0xffffffffU, packed, i), slot, first + i);
        // The copy engine of another SM reads what these lanes wrote.
        device::fence_proxy_async();
        __syncwarp();
        if (lane() == 0)
            device::red_release_gpu_add_u32(me.at<std::uint32_t>(p.at.pulled) + block,
                                            static_cast<std::uint32_t>(rows));
    }

    __device__ __forceinline__ void run(int warp) const {
        const std::int32_t blocks = me.at<std::int32_t>(me.p.at.row_begin)[me.p.held_experts];
        const std::int32_t warps = me.p.blocks * kDispatchWarps;
        // Few rows are spread over all warps, for the first tile waits for its last row; of many, a
        // warp takes more at a time and looks fewer up.
        const int rows = blocks * kTileRows < warps * kPullRows ? kPullRows / 4 : kPullRows;
        const int units = kTileRows / rows;
        // Neighbouring CTAs take neighbouring units, so a block's rows come from many SMs at once.
#pragma unroll 1
        for (std::int32_t unit = warp * me.p.blocks + me.cta(); unit < blocks * units;
             unit += warps)
            pull(unit / units, unit % units * rows, rows);
    }
};

}  // namespace xstage::moe::kernels
