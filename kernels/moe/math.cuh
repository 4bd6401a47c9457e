#pragma once

#include "config.hpp"
#include "epilogue.cuh"
#include "feeder.cuh"
#include "matrix.cuh"
#include "rank.cuh"

namespace xstage::moe::kernels {

/// 64 rows of every tile, 128 sums a thread.
template <class C>
struct MathGroup {
    const Rank& me;
    SharedStorage& shared;
    int group, warp;

    Place<kStages> stage;

    __device__ __forceinline__ static int lane() { return device::lane_id_again(); }
    __device__ __forceinline__ std::uint64_t a_descriptor() const {
        return device::matrix_descriptor(shared.a[stage.slot()][group], 0);
    }
    __device__ __forceinline__ std::uint64_t b_descriptor(int half) const {
        return device::matrix_descriptor(shared.b[stage.slot()][half], 0);
    }
    __device__ __forceinline__ void await_stage() const {
        device::mbarrier_wait(&shared.full[stage.slot()], stage.parity());
    }
    /// Each warp for itself: one that lags must neither find its operands overwritten nor miss a
    /// whole round of the barrier.
    __device__ __forceinline__ void release(int slot) const {
        if constexpr (C::kCtas > 1) {
            // Both CTAs' feeders write to both CTAs' stages.
            const auto cta = static_cast<std::uint32_t>(lane());
            if (cta < C::kCtas) device::mbarrier_arrive_of(&shared.empty[slot], cta);
        } else {
            if (lane() == 0) device::mbarrier_arrive(&shared.empty[slot]);
        }
    }

    /// None of the group's rows holds a token: the stages pass by.
    __device__ __forceinline__ void skip(int stages) {
        for (int k = 0; k < stages; ++k, stage.advance()) {
            await_stage();
            release(stage.slot());
        }
    }

    /// One product behind the other; a stage is let go when the next stage's product has started.
    __device__ __forceinline__ void multiply(float (&sums)[128], int stages) {
        int previous = 0;
        for (int k = 0; k < stages; ++k, stage.advance()) {
            await_stage();
            start_product<WideBf16>(sums, a_descriptor(), b_descriptor(0), k > 0);
            if (k > 0) {
                wait_products<1>();
                release(previous);
            }
            previous = stage.slot();
        }
        wait_products<0>();
        fence_registers(sums);
        release(previous);
    }

    template <int kHalf>
    __device__ __forceinline__ static void add_scaled(float (&sums)[128], const float (&part)[64],
                                                      const float (&scale)[2]) {
#pragma unroll
        for (int i = 0; i < 64; ++i)
            sums[64 * kHalf + i] = fmaf(part[i], scale[i / 2 % 2], sums[64 * kHalf + i]);
    }

    /// Sums of 128 products each are scaled and added in fp32: the tensor cores keep too few bits
    /// for longer ones. While one group scales, the other's products run.
    __device__ __forceinline__ void multiply_scaled(float (&sums)[128], int stages,
                                                    const float* scales, int other) {
#pragma unroll
        for (int i = 0; i < 128; ++i) sums[i] = 0;
        const int row = group * kGroupRows + warp * 16 + lane() / 4;
        // 16 stages' scales at a time, one a lane, and as long before: loaded stage by stage they
        // are waited for where memory sets the pace.
        const auto load = [&](int k) {
            const int at = min(k + lane() % 16, stages - 1);
            return __ldg(scales + (lane() < 16 ? 0 : other) + at);
        };
        float now;
        float next = load(0);
        for (int k = 0; k < stages; ++k, stage.advance()) {
            if (k % 16 == 0) {
                now = next;
                next = load(k + 16);
            }
            const float weight0 = __shfl_sync(0xffffffffU, now, k % 16);
            const float weight1 = __shfl_sync(0xffffffffU, now, 16 + k % 16);
            float part[64];
            await_stage();
            const float rows[2] = {shared.scale[stage.slot()][row],
                                   shared.scale[stage.slot()][row + 8]};
            start_product<HalfFp8>(part, a_descriptor(), b_descriptor(0), false);
            wait_products<0>();
            fence_registers(part);
            const float first[2] = {rows[0] * weight0, rows[1] * weight0};
            add_scaled<0>(sums, part, first);
            start_product<HalfFp8>(part, a_descriptor(), b_descriptor(1), false);
            wait_products<0>();
            fence_registers(part);
            release(stage.slot());
            const float second[2] = {rows[0] * weight1, rows[1] * weight1};
            add_scaled<1>(sums, part, second);
        }
    }

    /// Sums of one tile; the task is read again afterwards, so that nothing of it stays in
    /// registers.
    __device__ __forceinline__ void sum_up(float (&sums)[128], const Task& task) {
        const KernelParams& p = me.p;
        const bool first = task.kind == 1;
        const int width = first ? p.hidden : p.intermediate;
        if constexpr (C::kScaled) {
            const int columns = first ? 2 * p.intermediate : p.hidden;
            const int groups = width / kScaleGroup;
            const int row = task.expert * (columns / kScaleGroup) + (first ? task.n : 2 * task.n);
            const float* scales =
                (first ? me.args().s1 : me.args().s2) + std::int64_t{row} * groups;
            multiply_scaled(sums, groups, scales,
                            (first ? p.intermediate / kScaleGroup : 1) * groups);
        } else {
            multiply(sums, width / C::kDepth);
        }
    }

    __device__ __forceinline__ void run() {
        for (Place<kTaskSlots> place;; place.advance()) {
            await_task<C>(shared, place);
            const Task& task = shared.task[place.slot()];
            if (task.kind == 0) return;
            if (group >= task.groups()) {
                skip((task.kind == 1 ? me.p.hidden : me.p.intermediate) / C::kDepth);
            } else {
                float sums[128];
                sum_up(sums, task);
                const Epilogue<C> epilogue{me, shared, group, warp};
                if (task.kind == 1) {
                    epilogue.store_first(sums, task);
                } else {
                    epilogue.store_second(sums, task);
                }
            }
            __syncwarp();
            if (lane() == 0) let_go_of_task<C>(shared, place);
        }
    }
};

}  // namespace xstage::moe::kernels
