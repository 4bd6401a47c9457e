#pragma once

#include <type_traits>

#include "config.hpp"
#include "epilogue.cuh"
#include "feeder.cuh"
#include "matrix.cuh"
#include "rank.cuh"

namespace xstage::moe::kernels {

/// A wide tile's groups take 64 rows each and all columns, 128 sums a thread. A narrow tile has no
/// rows for the second group: both take all of them, and 64 columns of each half, which the feeder
/// laid side by side.
template <class C>
struct MathGroup {
    const Rank& me;
    SharedStorage& shared;
    int group, warp;

    Place<kStages> stage;

    __device__ __forceinline__ static int lane() { return device::lane_id_again(); }
    template <bool kNarrow>
    __device__ __forceinline__ std::uint64_t a_descriptor() const {
        return device::matrix_descriptor(shared.a[stage.slot()][kNarrow ? 0 : group], 0);
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
        if (lane() == 0) device::mbarrier_arrive(&shared.empty[slot]);
    }

    /// One product behind the other; a stage is let go when the next stage's product has started.
    template <int kSums>
    __device__ __forceinline__ void multiply(float (&sums)[kSums], int stages) {
        constexpr bool kNarrow = kSums == kNarrowSums;
        using Product = std::conditional_t<kNarrow, NarrowBf16, WideBf16>;
        int previous = 0;
        for (int k = 0; k < stages; ++k, stage.advance()) {
            await_stage();
            start_product<Product>(sums, a_descriptor<kNarrow>(), b_descriptor(kNarrow ? group : 0),
                                   k > 0);
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

    /// kCount of the products, from kFrom on, to the sums from kTo on.
    template <int kTo, int kFrom, int kCount, int kSums>
    __device__ __forceinline__ static void add_scaled(float (&sums)[kSums], const float (&part)[64],
                                                      const float (&scale)[2]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            sums[kTo + i] = fmaf(part[kFrom + i], scale[i / 2 % 2], sums[kTo + i]);
    }

    /// Sums of 128 products each are scaled and added in fp32: the tensor cores keep too few bits
    /// for longer ones. While one group scales, the other's products run.
    template <int kSums>
    __device__ __forceinline__ void multiply_scaled(float (&sums)[kSums], int stages,
                                                    const float* scales, int other) {
        constexpr bool kNarrow = kSums == kNarrowSums;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] = 0;
        const int row = (kNarrow ? 0 : group * kGroupRows) + warp * 16 + lane() / 4;
        float next0 = __ldg(scales);
        float next1 = __ldg(scales + other);
        for (int k = 0; k < stages; ++k, stage.advance()) {
            const float weight0 = next0;
            const float weight1 = next1;
            if (k + 1 < stages) {  // a stage ahead, so that nobody waits for memory
                next0 = __ldg(++scales);
                next1 = __ldg(scales + other);
            }
            await_stage();
            const float rows[2] = {shared.scale[stage.slot()][row],
                                   shared.scale[stage.slot()][row + 8]};
            const std::uint64_t a = a_descriptor<kNarrow>();
            const float first[2] = {rows[0] * weight0, rows[1] * weight0};
            const float second[2] = {rows[0] * weight1, rows[1] * weight1};
            float part[64];  // there are no registers for more
            start_product<HalfFp8>(part, a, b_descriptor(kNarrow ? group : 0), false);
            wait_products<0>();
            fence_registers(part);
            if constexpr (kNarrow) {
                release(stage.slot());
                add_scaled<0, 0, 32>(sums, part, first);
                add_scaled<32, 32, 32>(sums, part, second);
            } else {
                add_scaled<0, 0, 64>(sums, part, first);
                start_product<HalfFp8>(part, a, b_descriptor(1), false);
                wait_products<0>();
                fence_registers(part);
                release(stage.slot());
                add_scaled<64, 0, 64>(sums, part, second);
            }
        }
    }

    /// Sums of one tile; the task is read again afterwards, so that nothing of it stays in
    /// registers.
    template <int kSums>
    __device__ __forceinline__ void sum_up(float (&sums)[kSums], const Task& task) {
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

    template <int kSums>
    __device__ __forceinline__ void compute(const Task& task) {
        float sums[kSums];
        sum_up(sums, task);
        const Epilogue<C, kSums> epilogue{me, shared, group, warp};
        if (task.kind == 1) {
            epilogue.store_first(sums, task);
        } else {
            epilogue.store_second(sums, task);
        }
    }

    __device__ __forceinline__ void run() {
        for (Place<kTaskSlots> place;; place.advance()) {
            device::mbarrier_wait(&shared.task_full[place.slot()], place.parity());
            const Task& task = shared.task[place.slot()];
            if (task.kind == 0) return;
            if (task.narrow()) {
                compute<kNarrowSums>(task);
            } else {
                compute<kWideSums>(task);
            }
            __syncwarp();
            if (lane() == 0) device::mbarrier_arrive(&shared.task_empty[place.slot()]);
        }
    }
};

}  // namespace xstage::moe::kernels
