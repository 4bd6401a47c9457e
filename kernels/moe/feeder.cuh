#pragma once

// One thread claims tasks in the order of the plan, another loads the stages of claimed tasks.
//
// No deadlock: tasks are claimed in order and every cluster (of one CTA or two) does its own in the
// order it claimed them, so of the unfinished tasks the first in the order waits for finished ones
// only. A Linear-2 task stands after all Linear-1 tasks of its rows (xstage/plan/moe_order.hpp),
// and with a ring a Linear-1 task stands after all Linear-2 tasks of the rows whose place it takes
// (least_ring).

#include "config.hpp"
#include "dispatch.cuh"
#include "rank.cuh"
#include "xstage/device/cluster.cuh"
#include "xstage/device/mbarrier.cuh"
#include "xstage/device/tensor_copy.cuh"
#include "xstage/plan/moe_order.hpp"

namespace xstage::moe::kernels {

template <class C>
__device__ __forceinline__ void init_barriers(SharedStorage& shared) {
    for (int s = 0; s < kStages; ++s) {
        device::mbarrier_init(&shared.full[s], 1);
        device::mbarrier_init(&shared.empty[s], C::kCtas * kMathGroups * 4);  // every math warp
    }
    for (int s = 0; s < kTaskSlots; ++s) {
        device::mbarrier_init(&shared.task_full[s], 1);
        // Feeder and math warps.
        device::mbarrier_init(&shared.task_empty[s], C::kCtas * (1 + kMathGroups * 4));
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

/// A cluster's first CTA claims for all.
template <class C>
__device__ __forceinline__ void await_task(SharedStorage& shared, const Place<kTaskSlots>& place) {
    if constexpr (C::kCtas > 1) {
        device::mbarrier_wait_cluster(&shared.task_full[place.slot()], place.parity());
    } else {
        device::mbarrier_wait(&shared.task_full[place.slot()], place.parity());
    }
}
/// Whoever reads a task lets go of its slot afterwards.
template <class C>
__device__ __forceinline__ void let_go_of_task(SharedStorage& shared,
                                               const Place<kTaskSlots>& place) {
    if constexpr (C::kCtas > 1) {
        device::mbarrier_arrive_of(&shared.task_empty[place.slot()], 0);
    } else {
        device::mbarrier_arrive(&shared.task_empty[place.slot()]);
    }
}

/// What the cluster's CTA number `part` does of a tile of the plan.
template <class C>
__device__ __forceinline__ Task task_of(const Rank& me, const plan::MoeGrid& grid,
                                        const plan::MoeTile& tile, int part) {
    const std::int32_t* row_begin = me.at<std::int32_t>(me.p.at.row_begin);
    Task task{};
    task.kind = tile.second ? 2 : 1;
    task.n = tile.n;
    task.expert = expert_of(grid.row_begin, grid.experts, tile.row);
    task.block = tile.row;
    if constexpr (C::kCtas > 1) {
        task.block =
            row_begin[task.expert] + part + C::kCtas * (tile.row - grid.row_begin[task.expert]);
        if (task.block >= row_begin[task.expert + 1]) return task;
    }
    task.slot = task.block % me.p.at.ring_blocks;
    task.rows = rows_of_block(me, task.expert, task.block);
    return task;
}

template <class C>
__device__ __forceinline__ void hand_out(SharedStorage& shared, int slot, int part,
                                         const Task& task) {
    if constexpr (C::kCtas > 1) {
        auto* const to = reinterpret_cast<std::uint32_t*>(&shared.task[slot]);
        const auto* const from = reinterpret_cast<const std::uint32_t*>(&task);
        const auto cta = static_cast<std::uint32_t>(part);
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof task / 4); ++i)
            device::st_shared_u32_of(to + i, cta, from[i]);
        device::mbarrier_release_of(&shared.task_full[slot], cta);
    } else {
        shared.task[slot] = task;
        device::mbarrier_arrive(&shared.task_full[slot]);
    }
}

/// One thread of a cluster's first CTA.
template <class C>
__device__ __forceinline__ void claim_tasks(const Rank& me, SharedStorage& shared) {
    if (me.cta() % C::kCtas != 0) return;
    const KernelParams& p = me.p;
    const plan::MoeGrid grid{p.held_experts, p.intermediate / kHalfColumns, p.hidden / kTileColumns,
                             me.at<std::int32_t>(C::kCtas > 1 ? p.at.pair_begin : p.at.row_begin)};
    const plan::MoeTurns turns = plan::turns_of(grid, p.order);
    const std::int64_t size = grid.size();
    Place<kTaskSlots> place;
    for (bool more = true; more; place.advance()) {
        const std::int64_t index = atomicAdd(&me.control().next_task, 1U);
        more = index < size;
        plan::MoeTile tile;
        if (more) tile = plan::moe_tile_at(grid, p.order, turns, index);
        for (int part = 0; part < C::kCtas; ++part) {
            Task task{};
            if (more) task = task_of<C>(me, grid, tile, part);
            if (part == 0)
                device::mbarrier_wait(&shared.task_empty[place.slot()], place.parity() ^ 1);
            hand_out<C>(shared, place.slot(), part, task);
        }
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
        if (C::kCtas > 1 && task.rows == 0) return;
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
        const std::uint32_t scale_bytes =
            C::kScaled && (C::kCtas == 1 || groups > 0) ? sizeof shared.scale[0] : 0;
        // Each CTA of a cluster brings a half of the weights, for both.
        constexpr std::uint16_t kBoth = 3;
        const int part = me.cta() % C::kCtas;
        for (int k = 0; k < width / C::kDepth; ++k, stage.advance()) {
            std::uint64_t* full = &shared.full[stage.slot()];
            device::mbarrier_wait(&shared.empty[stage.slot()], stage.parity() ^ 1);
            device::mbarrier_arrive_expect_bytes(
                full,
                static_cast<std::uint32_t>(groups * kGroupBytes + 2 * kHalfBytes) + scale_bytes);
            for (int g = 0; g < groups; ++g)
                device::bulk_tensor_load_2d(shared.a[stage.slot()][g], a_map, full, k * C::kDepth,
                                            task.slot * kTileRows + g * kGroupRows);
            if constexpr (C::kCtas > 1) {
                device::bulk_tensor_load_2d_to(shared.b[stage.slot()][part], b_map, full,
                                               k * C::kDepth, part == 0 ? row0 : row1, kBoth);
            } else {
                device::bulk_tensor_load_2d(shared.b[stage.slot()][0], b_map, full, k * C::kDepth,
                                            row0);
                device::bulk_tensor_load_2d(shared.b[stage.slot()][1], b_map, full, k * C::kDepth,
                                            row1);
            }
            if constexpr (C::kScaled) {
                if (scale_bytes > 0)
                    device::bulk_load(shared.scale[stage.slot()], scale + k * kTileRows,
                                      scale_bytes, full);
            }
        }
    }

    /// One thread.
    __device__ __forceinline__ void run() {
        for (Place<kTaskSlots> place;; place.advance()) {
            await_task<C>(shared, place);
            const Task task = shared.task[place.slot()];
            let_go_of_task<C>(shared, place);
            if (task.kind == 0) return;
            await_rows(task);
            load(task);
        }
    }
};

}  // namespace xstage::moe::kernels
