#pragma once

// What a math warp does with the 16 rows of sums it holds. Accumulator layout of wgmma: elements
// 4j, 4j+1 are columns 8j + 2 * (lane % 4) and the next of row lane / 4, elements 4j+2, 4j+3 those
// of the row eight below.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "config.hpp"
#include "dispatch.cuh"
#include "rank.cuh"
#include "xstage/device/warpgroup.cuh"

namespace xstage::moe::kernels {

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
}

__device__ __forceinline__ std::uint16_t pack_e4m3(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

/// silu(gate) * up. Comparisons and not fminf: a NaN must come through the clamp.
__device__ __forceinline__ float swiglu(float gate, float up, float clamp) {
    constexpr float kLog2E = 1.4426950408889634F;
    gate = gate > clamp ? clamp : gate;
    up = up > clamp ? clamp : (up < -clamp ? -clamp : up);
    return __fdividef(gate, 1.0F + device::exp2_approx(-gate * kLog2E)) * up;
}

/// The smallest power of two that brings `most` to at most 448, the largest e4m3, as exponent bits.
/// A power of two, so that scaling rounds nothing.
__device__ __forceinline__ std::uint32_t scale_exponent(float most) {
    // 448 is 1.75 * 2^8: adding what 1.75's fraction lacks to the next carries into the exponent.
    const std::uint32_t exponent = (__float_as_uint(most) + 0x1fffffU) >> 23;
    return exponent > 8 + 1 ? min(exponent - 8, 253U) : 1U;
}

template <class C>
struct Epilogue {
    const Rank& me;
    SharedStorage& shared;
    int group, warp;  ///< warp within the group

    __device__ __forceinline__ static int lane() { return device::lane_id_again(); }
    __device__ __forceinline__ int first_row() const { return group * kGroupRows + warp * 16; }
    /// This warp's 16 rows.
    __device__ __forceinline__ unsigned char* staging() const {
        return device::opaque(shared.staged[group * 4 + warp]);
    }

    /// Linear-1: gate in sums[0..64), up in sums[64..128).
    __device__ __forceinline__ void store_first(float (&sums)[128], const Task& task) const {
        const KernelParams& p = me.p;
        const int lane = this->lane();
        const std::int64_t pool_row = std::int64_t{task.slot} * kTileRows;
        const float* weights = me.at<float>(p.at.row_weight) + pool_row + first_row() + lane / 4;
        const float weight[2] = {__ldcg(weights), __ldcg(weights + 8)};
        float most[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            sums[i] = swiglu(sums[i], sums[64 + i], p.clamp) * weight[i / 2 % 2];
            most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(sums[i]));
        }
        unsigned char* const staged = staging();
        std::byte* const act = me.at<std::byte>(p.at.act);
        const std::int64_t pitch = std::int64_t{p.intermediate} * C::kElementBytes;
        if constexpr (C::kScaled) {
            float* const scales =
                me.at<float>(p.at.act_scale) +
                (std::int64_t{task.slot} * (p.intermediate / kScaleGroup) + task.n) * kTileRows;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffU, most[r], 1));
                most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffU, most[r], 2));
                const std::uint32_t exponent = scale_exponent(most[r]);
                if (lane % 4 == 0)
                    scales[first_row() + lane / 4 + 8 * r] = __uint_as_float(exponent << 23);
                const float inverse = __uint_as_float((254 - exponent) << 23);
                unsigned char* to = staged + (lane / 4 + 8 * r) * kStagedPitch + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < 16; ++j)
                    *reinterpret_cast<std::uint16_t*>(to + 8 * j) =
                        pack_e4m3(sums[4 * j + 2 * r] * inverse, sums[4 * j + 2 * r + 1] * inverse);
            }
            send_first(act + pool_row * pitch + std::int64_t{task.n} * kHalfColumns, pitch, task);
        } else {
#pragma unroll
            for (int piece = 0; piece < 2; ++piece) {
                stage_bf16(&sums[32 * piece]);
                send_first(act + pool_row * pitch +
                               (std::int64_t{task.n} * kHalfColumns + piece * kPieceColumns) * 2,
                           pitch, task);
            }
        }
        report(p.at.first_done, task);
    }

    /// Linear-2: 256 columns of output, to the ranks that own the rows' tokens.
    __device__ __forceinline__ void store_second(float (&sums)[128], const Task& task) const {
        const KernelParams& p = me.p;
        const int lane = this->lane();
        unsigned char* const staged = staging();
        const std::uint32_t* routes = me.at<std::uint32_t>(p.at.row_route) +
                                      std::int64_t{task.slot} * kTileRows + first_row();
        std::byte* to[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 4 * i + lane / 8;
            to[i] = nullptr;
            if (first_row() + row >= task.rows) continue;
            const std::uint32_t packed = __ldcg(routes + row);
            to[i] = me.peer_at<std::byte>(rank_of(packed), p.at.combine) +
                    (std::int64_t{route_of(packed)} * p.hidden + task.n * kTileColumns) * 2 +
                    lane % 8 * 16;
        }
        const bool bulk = p.store == StorePath::kBulk;
#pragma unroll
        for (int piece = 0; piece < 4; ++piece) {
            if (bulk) device::bulk_wait_read<0>();
            stage_bf16(&sums[32 * piece]);
            if (bulk) {
                device::fence_proxy_async_shared();
                __syncwarp();
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (to[i] == nullptr) continue;
                const unsigned char* from =
                    staged + (4 * i + lane / 8) * kStagedPitch + lane % 8 * 16;
                std::byte* const at = to[i] + piece * kPieceColumns * 2;
                if (!bulk) {
                    device::st_weak_v4(at, device::ld_shared_v4(from));
                } else if (lane % 8 == 0) {
                    device::bulk_store(at, from, kPieceColumns * 2);
                }
            }
            if (bulk) device::bulk_commit();
        }
        if (bulk) device::bulk_wait<0>();
        if (p.at.ring_blocks < p.at.max_blocks) report(p.at.second_done, task);
    }

  private:
    /// 64 columns of the warp's 16 rows.
    __device__ __forceinline__ void stage_bf16(const float* sums) const {
        const int lane = this->lane();
        __syncwarp();  // everybody has read what lay there
        const std::uint32_t to =
            device::shared_address(staging()) + lane % 16 * kStagedPitch + lane / 16 * 16;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            device::stmatrix_x4(to + 32 * j, pack_bf16(sums[8 * j], sums[8 * j + 1]),
                                pack_bf16(sums[8 * j + 2], sums[8 * j + 3]),
                                pack_bf16(sums[8 * j + 4], sums[8 * j + 5]),
                                pack_bf16(sums[8 * j + 6], sums[8 * j + 7]));
        __syncwarp();
    }

    /// 128 staged bytes of each row to the pool, of which `block` is the block's first.
    __device__ __forceinline__ void send_first(std::byte* block, std::int64_t pitch,
                                               const Task& task) const {
        const int lane = this->lane();
        const unsigned char* const staged = staging();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 4 * i + lane / 8;
            if (first_row() + row >= task.rows) continue;
            device::st_weak_v4(block + (first_row() + row) * pitch + lane % 8 * 16,
                               device::ld_shared_v4(staged + row * kStagedPitch + lane % 8 * 16));
        }
        __syncwarp();
    }

    /// The group has finished its part of the task.
    __device__ __forceinline__ void report(std::int64_t counters, const Task& task) const {
        device::fence_proxy_async();  // another SM's copy engine reads what we stored
        device::bar_sync(kBarrierGroup + group, device::kWarpgroupThreads);
        if (warp == 0 && lane() == 0)
            device::red_release_gpu_add_u32(me.at<std::uint32_t>(counters) + task.block, 1);
    }
};

}  // namespace xstage::moe::kernels
