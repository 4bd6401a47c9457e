#pragma once

#include "config.hpp"
#include "mask.cuh"
#include "params.hpp"
#include "ring.cuh"
#include "xstage/device/tensor_copy.cuh"

namespace xstage::attention {

/// The tiles of this CTA, in the order of the plan. CTAs of a cluster take neighbouring tiles; the
/// last of an odd number has no rows, and the copy engine clips it away.
template <class C>
struct TileWalk {
    std::int32_t round = 0;

    __device__ __forceinline__ std::int32_t index() const {
        return plan::task_index(static_cast<int>(blockIdx.x / C::kCluster),
                                static_cast<int>(gridDim.x / C::kCluster), round,
                                C::kMask == MaskKind::kCausal);
    }
    __device__ __forceinline__ bool done(const KernelParams& p) const {
        return index() >= p.grid.size();
    }
    __device__ __forceinline__ plan::AttentionTile at(const KernelParams& p) const {
        plan::AttentionTile tile = plan::tile_at(p.grid, index());
        if constexpr (C::kCluster > 1) {
            tile.tile = tile.tile * C::kCluster + static_cast<int>(device::cluster_cta_rank());
        }
        return tile;
    }
    __device__ __forceinline__ void next() { ++round; }
};

template <class C>
struct Producer {
    const KernelParams& p;
    SharedStorage<C>& shared;
    RingPlace<C> ring;
    std::uint32_t q_parity = 0;

    /// Loads one block of K or V into the next slot of the ring.
    __device__ __forceinline__ void load_block(const CUtensorMap& map, std::int32_t block,
                                               std::int32_t head, std::int32_t batch) {
        device::MBarrier* full = &shared.slot_full[ring.slot];
        device::mbarrier_wait(&shared.slot_empty[ring.slot], ring.parity ^ 1);
        device::mbarrier_arrive_expect_bytes(full, C::kSlotBytes);
        unsigned char* slot = shared.ring[ring.slot];
        if constexpr (C::kCluster == 1) {
            device::bulk_tensor_load_5d(slot, &map, full, {0, block * C::kKeys, 0, head, batch});
        } else {
            const int panel = static_cast<int>(device::cluster_cta_rank());
            device::bulk_tensor_load_5d_cluster(slot + panel * (C::kSlotBytes / C::kPanels), &map,
                                                full, {0, block * C::kKeys, panel, head, batch},
                                                (1 << C::kCluster) - 1);
        }
        ring.advance();
    }

    __device__ __forceinline__ void load_q(int group, const plan::AttentionTile& at) {
        device::mbarrier_wait(&shared.q_empty[group], q_parity ^ 1);
        device::mbarrier_arrive_expect_bytes(&shared.q_full[group], C::kGroupBytes);
        const int row = at.tile * C::kRows + group * C::kGroupRows;
        device::bulk_tensor_load_5d(shared.q[group], &p.q, &shared.q_full[group],
                                    {0, row, 0, at.head, at.batch});
    }

    /// Runs in one thread.
    __device__ __forceinline__ void run() {
        for (TileWalk<C> walk; !walk.done(p); walk.next()) {
            const plan::AttentionTile at = walk.at(p);
            const Mask<C> keys(p, at);
            const std::int32_t blocks = keys.blocks();
            if (blocks == 0) continue;
            const std::int32_t head = at.head / p.heads_per_kv_head;
            const std::int32_t batch = at.batch * p.kv_batch_step;

            // The first group starts on its own Q and the first keys; the others are still busy
            // with the previous tile when it does.
            load_q(0, at);
            load_block(p.k, keys.block(0), head, batch);
            for (int g = 1; g < C::kMathGroups; ++g) load_q(g, at);
            q_parity ^= 1;

            if constexpr (C::kOverlap) {
                for (std::int32_t n = 1; n < blocks; ++n) {
                    load_block(p.k, keys.block(n), head, batch);
                    load_block(p.v, keys.block(n - 1), head, batch);
                }
            } else {
                for (std::int32_t n = 1; n < blocks; ++n) {
                    load_block(p.v, keys.block(n - 1), head, batch);
                    load_block(p.k, keys.block(n), head, batch);
                }
            }
            load_block(p.v, keys.block(blocks - 1), head, batch);
        }
    }
};

}  // namespace xstage::attention
