#pragma once

#include "config.hpp"
#include "mask.cuh"
#include "params.hpp"
#include "ring.cuh"
#include "xstage/device/tensor_copy.cuh"

namespace xstage::attention {

/// The tiles of this CTA, in the order of the plan. Producer and math warps each walk for
/// themselves: what comes from the block's index the compiler keeps in uniform registers, and
/// handing tiles over in shared memory cost spills.
template <class C>
struct TileWalk {
    std::int32_t round = 0;

    __device__ __forceinline__ std::int32_t index() const {
        // Causal tiles shrink along the order.
        return plan::task_index(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), round,
                                /*back_and_forth=*/C::kMask == MaskKind::kCausal);
    }
    __device__ __forceinline__ bool done(const KernelParams& p) const {
        return index() >= p.grid.size();
    }
    __device__ __forceinline__ plan::AttentionTile at(const KernelParams& p) const {
        return plan::tile_at(p.grid, index());
    }
    __device__ __forceinline__ void next() { ++round; }
};

/// One thread that loads what the math groups need. It runs ahead of them by the ring's length.
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
        device::bulk_tensor_load_5d(shared.ring[ring.slot], &map, full,
                                    {0, block * C::kKeys, 0, head, batch});
        ring.advance();
    }

    __device__ __forceinline__ void load_q(int group, const plan::AttentionTile& at) {
        device::mbarrier_wait(&shared.q_empty[group], q_parity ^ 1);
        device::mbarrier_arrive_expect_bytes(&shared.q_full[group], C::kGroupBytes);
        const int row = at.tile * C::kRows + group * C::kGroupRows;
        device::bulk_tensor_load_5d(shared.q[group], &p.q, &shared.q_full[group],
                                    {0, row, 0, at.head, at.batch});
    }

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
            for (std::int32_t n = 1; n < blocks; ++n) {
                load_block(p.k, keys.block(n), head, batch);
                load_block(p.v, keys.block(n - 1), head, batch);
            }
            load_block(p.v, keys.block(blocks - 1), head, batch);
        }
    }
};

}  // namespace xstage::attention
