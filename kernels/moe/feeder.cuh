#pragma once

// One thread claims tasks in the order of the plan, another loads the stages of claimed tasks.
//
// No deadlock: tasks are claimed in order and every CTA does its own in the order it claimed them,
// so of the unfinished tasks the first in the order waits for finished ones only. A Linear-2 task
// stands after all Linear-1 tasks of its rows (xstage/plan/moe_order.hpp), and with a ring a
// Linear-1 task stands after all Linear-2 tasks of the rows whose place it takes (least_ring).

#include "config.hpp"
#include "dispatch.cuh"
#include "rank.cuh"
#include "xstage/device/mbarrier.cuh"
#include "xstage/device/tensor_copy.cuh"
#include "xstage/plan/moe_order.hpp"

namespace xstage::moe::kernels {

__device__ __forceinline__ void init_barriers(SharedStorage& shared) {
    for (int s = 0; s < kStages; ++s) {
        device::mbarrier_init(&shared.full[s], 1);
        device::mbarrier_init(&shared.empty[s], kMathGroups * 4);  // every math warp
    }
    for (int s = 0; s < kTaskSlots; ++s) {
        device::mbarrier_init(&shared.task_full[s], 1);
        device::mbarrier_init(&shared.task_empty[s], 1 + kMathGroups * 4);  // feeder, math warps
    }
    device::fence_mbarrier_init_release_cluster();
}

/// Place in a ring of barriers, whose parity flips with every round. One register, not two.
template <int kSlots>
struct Place {
    static_assert((kSlots & (kSlots - 1)) == 0, "a power of two");
    std::uint32_t count = 0;
    __device__ __forceinline__ int slot() const { return static_cast<int>(count % kSlots); }
    __device__ __forceinline__ std::uint32_t parity() const { return count / kSlots % 2; }
    __device__ __forceinline__ void advance() { ++count; }
};

/// Reads the next task. Whoever does so lets go of the slot afterwards.
__device__ __forceinline__ Task take_task(SharedStorage& shared, Place<kTaskSlots>& place) {
    device::mbarrier_wait(&shared.task_full[place.slot()], place.parity());
    return shared.task[place.slot()];
}

/// One thread.
__device__ __forceinline__ void claim_tasks(const Rank& me, SharedStorage& shared) {
    const KernelParams& p = me.p;
    const plan::MoeGrid grid{p.held_experts, p.intermediate / kHalfColumns, p.hidden / kTileColumns,
                             me.at<std::int32_t>(p.at.row_begin)};
    const plan::MoeTurns turns = plan::turns_of(grid, p.order);
    const std::int64_t size = grid.size();
    Place<kTaskSlots> place;
    for (bool more = true; more; place.advance()) {
        const std::int64_t index = atomicAdd(&me.control().next_task, 1U);
        more = index < size;
        Task task{};
        if (more) {
            const plan::MoeTile tile = plan::moe_tile_at(grid, p.order, turns, index);
            task.kind = tile.second ? 2 : 1;
            task.block = tile.row;
            task.slot = tile.row % p.at.ring_blocks;
            task.n = tile.n;
            task.expert = expert_of(grid.row_begin, grid.experts, tile.row);
            task.rows = rows_of_block(me, task.expert, tile.row);
        }
        device::mbarrier_wait(&shared.task_empty[place.slot()], place.parity() ^ 1);
        shared.task[place.slot()] = task;
        device::mbarrier_arrive(&shared.task_full[place.slot()]);
    }
}

template <class C>
struct Feeder {
    const Rank& me;
    SharedStorage& shared;
    Place<kStages> stage;

    /// Until the rows that a task reads are there.
    __device__ __forceinline__ void await_rows(const Task& task) const {
        const KernelParams& p = me.p;
        if (task.kind == 1) {
            await_count(me, me.at<std::uint32_t>(p.at.pulled) + task.block,
                        static_cast<std::uint32_t>(task.rows));
        } else {
            await_count(
                me, me.at<std::uint32_t>(p.at.first_done) + task.block,
                static_cast<std::uint32_t>(task.groups() * (p.intermediate / kHalfColumns)));
        }
        device::fence_proxy_async();  // they were written by ordinary stores
    }

    __device__ __forceinline__ void load(const Task& task) {
        const KernelParams& p = me.p;
        const bool first = task.kind == 1;
        const CUtensorMap* a_map = first ? &me.args().x : &me.args().act;
        const CUtensorMap* b_map = first ? &me.args().w1 : &me.args().w2;
        const int width = first ? p.hidden : p.intermediate;
        // Gate and up of the same columns, or two neighbouring halves.
        const int row0 = first ? task.expert * 2 * p.intermediate + task.n * kHalfColumns
                               : task.expert * p.hidden + task.n * kTileColumns;
        const int row1 = row0 + (first ? p.intermediate : kHalfColumns);
        const int groups = task.groups();
        const float* scale = me.at<float>(first ? p.at.pool_x_scale : p.at.act_scale) +
                             std::int64_t{task.slot} * (width / kScaleGroup) * kTileRows;
        constexpr std::uint32_t kScaleBytes = C::kScaled ? sizeof shared.scale[0] : 0;
        for (int k = 0; k < width / C::kDepth; ++k, stage.advance()) {
            std::uint64_t* full = &shared.full[stage.slot()];
            device::mbarrier_wait(&shared.empty[stage.slot()], stage.parity() ^ 1);
            device::mbarrier_arrive_expect_bytes(
                full,
                static_cast<std::uint32_t>(groups * kGroupBytes + 2 * kHalfBytes) + kScaleBytes);
            for (int g = 0; g < groups; ++g)
                device::bulk_tensor_load_2d(shared.a[stage.slot()][g], a_map, full, k * C::kDepth,
                                            task.slot * kTileRows + g * kGroupRows);
            device::bulk_tensor_load_2d(shared.b[stage.slot()][0], b_map, full, k * C::kDepth,
                                        row0);
            device::bulk_tensor_load_2d(shared.b[stage.slot()][1], b_map, full, k * C::kDepth,
                                        row1);
            if constexpr (C::kScaled)
                device::bulk_load(shared.scale[stage.slot()], scale + k * kTileRows, kScaleBytes,
                                  full);
        }
    }

    /// One thread.
    __device__ __forceinline__ void run() {
        for (Place<kTaskSlots> place;; place.advance()) {
            const Task task = take_task(shared, place);
            device::mbarrier_arrive(&shared.task_empty[place.slot()]);
            if (task.kind == 0) return;
            await_rows(task);
            load(task);
        }
    }
};

}  // namespace xstage::moe::kernels
