#pragma once

#include "config.hpp"
#include "params.hpp"
#include "softmax.cuh"
#include "xstage/device/tensor_copy.cuh"
#include "xstage/device/warpgroup.cuh"

namespace xstage::attention {

/// Named barriers; 0 is __syncthreads.
inline constexpr int kBarrierTurn = 1;   ///< + math group: it is this group's turn to multiply
inline constexpr int kBarrierStore = 4;  ///< + math group: its output lies in shared memory

/// Stores the 64 rows of one math group. Each group has a buffer of its own, so nobody waits for
/// the other groups, and the wait for its reuse comes one whole tile later: a peer that takes the
/// rows slowly holds up nothing before that. Local memory, a stitched range and peers differ only
/// in the maps. Each map ends where its destination's rows end, and the engine clips the box there;
/// the rows a box has before a destination's first are left out by a map with a smaller box.
template <class C>
struct Epilogue {
    const KernelParams& p;
    unsigned char* buffer;  ///< [panel][row] of 128 bytes, swizzled
    int group, warp, lane;  ///< warp within the group

    __device__ __forceinline__ void store(float (&o)[C::kHeadDim / 2], RowSoftmax<C>& softmax,
                                          const plan::AttentionTile& at) {
        softmax.sum_over_quad();
        const int first_row = at.tile * C::kRows + group * C::kGroupRows;
        write_lse(softmax, at, first_row);
        const float inverse[2] = {softmax.inverse_sum(0), softmax.inverse_sum(1)};
        scale_rows(o, inverse);

        if (warp == 0 && lane == 0) device::bulk_wait_read<0>();
        device::bar_sync(kBarrierStore + group, device::kWarpgroupThreads);
        write_shared(o);
        // The copy engine reads what these threads wrote: each orders its own writes, then all
        // meet.
        device::fence_proxy_async_shared();
        device::bar_sync(kBarrierStore + group, device::kWarpgroupThreads);
        if (warp == 0 && lane == 0) send(at, first_row);
    }

    /// Before the CTA ends: shared memory must outlive the reads, and what waits behind this kernel
    /// in the stream must find the rows written.
    __device__ __forceinline__ void finish() const {
        if (warp == 0 && lane == 0) device::bulk_wait<0>();
    }

  private:
    __device__ __forceinline__ void write_lse(const RowSoftmax<C>& softmax,
                                              const plan::AttentionTile& at, int first_row) const {
        if (p.lse == nullptr || lane % 4 != 0) return;
        const int row = first_row + warp * 16 + lane / 4;
        float* const lse = p.lse + at.batch * p.lse_stride_batch + at.head * p.lse_stride_head;
        if (row < p.q_rows) lse[row] = softmax.log_sum(0, p.scale_log2);
        if (row + 8 < p.q_rows) lse[row + 8] = softmax.log_sum(1, p.scale_log2);
    }

    __device__ __forceinline__ void write_shared(const float (&o)[C::kHeadDim / 2]) const {
        using Element = typename C::Element;
        const int row = warp * 16 + lane % 16;
        const std::uint32_t row_address = device::shared_address(buffer) + row * 128;
#pragma unroll
        for (int i = 0; i < C::kHeadDim / 16; ++i) {
            // 16 columns are two 16-byte pieces; the swizzle permutes the 8 pieces of a row.
            const int piece = (i % 4 * 2 + lane / 16) ^ (row % 8);
            const std::uint32_t address = row_address + i / 4 * (C::kGroupRows * 128) + piece * 16;
            device::stmatrix_x4(address, pack(o[8 * i], o[8 * i + 1], Element{}),
                                pack(o[8 * i + 2], o[8 * i + 3], Element{}),
                                pack(o[8 * i + 4], o[8 * i + 5], Element{}),
                                pack(o[8 * i + 6], o[8 * i + 7], Element{}));
        }
    }

    __device__ __forceinline__ void send(const plan::AttentionTile& at, int first_row) const {
        const Destinations& to = p.destinations;
        for (int d = 0; d < to.count; ++d) {
            const int begin = max(first_row, to.row_begin[d]);
            const int end = min(first_row + C::kGroupRows, to.row_begin[d + 1]);
            if (begin >= end) continue;  // an empty chunk has no map, wherever it lies
            const int before = to.row_begin[d] - first_row;
            if (before <= 0) {
                device::bulk_tensor_store_5d(&p.o[d], buffer, {0, -before, 0, at.head, at.batch});
                continue;
            }
            for (int panel = 0; panel < C::kPanels; ++panel) {
                // The swizzle follows the address, so a box may start at any row of the buffer.
                device::bulk_tensor_store_5d(&p.o_head[d],
                                             buffer + (panel * C::kGroupRows + before) * 128,
                                             {0, 0, panel, at.head, at.batch});
            }
        }
        device::bulk_commit();
    }
};

}  // namespace xstage::attention
