#pragma once

// What a math warp does with the 16 rows of sums it holds. Accumulator layout of wgmma: elements
// 4j, 4j+1 are columns 8j + 2 * (lane % 4) and the next of row lane / 4, elements 4j+2, 4j+3 those
// of the row eight below.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "config.hpp"
#include "dispatch.cuh"
#include "rank.cuh"
#include "xstage/device/stamp.cuh"
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

    static constexpr int kSums = 128;
    static constexpr int kHalf = kSums / 2;  ///< of the columns of either half of the tile
    static constexpr int kPiece = 32;        ///< of kPieceColumns columns

    __device__ __forceinline__ static int lane() { return device::lane_id_again(); }
    __device__ __forceinline__ int first_row() const { return group * kGroupRows + warp * 16; }
    /// In 32 bits, which pools keep to: a first row of 64 would stay in two registers.
    __device__ __forceinline__ int first_pool_row(const Task& task) const {
        return task.slot * kTileRows + first_row();
    }
    /// This warp's 16 rows.
    __device__ __forceinline__ unsigned char* staging() const {
        return device::opaque(shared.staged[group * 4 + warp]);
    }

    /// Linear-1: gate in the first half of the sums, up in the second.
    __device__ __forceinline__ void store_first(float (&sums)[kSums], const Task& task) const {
        const KernelParams& p = me.p;
        const int lane = this->lane();
        const float* weights = me.at<float>(p.at.row_weight) + first_pool_row(task) + lane / 4;
        const float weight[2] = {__ldcg(weights), __ldcg(weights + 8)};
        if constexpr (C::kScaled) {
            float most[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
                sums[i] = activation(sums[i], sums[kHalf + i], weight[i / 2 % 2]);
                most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(sums[i]));
            }
            unsigned char* const staged = staging();
            float* const scales =
                me.at<float>(p.at.act_scale) +
                (std::int64_t{task.slot} * (p.intermediate / kScaleGroup) + task.n) * kTileRows;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffU, most[r], 1));
                most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffU, most[r], 2));
            }
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const std::uint32_t exponent = scale_exponent(most[r]);
                if (lane % 4 == 0)
                    scales[first_row() + lane / 4 + 8 * r] = __uint_as_float(exponent << 23);
                const float inverse = __uint_as_float((254 - exponent) << 23);
                unsigned char* at = staged + (lane / 4 + 8 * r) * kStagedPitch + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < kHalf / 4; ++j)
                    *reinterpret_cast<std::uint16_t*>(at + 8 * j) =
                        pack_e4m3(sums[4 * j + 2 * r] * inverse, sums[4 * j + 2 * r + 1] * inverse);
            }
            send_first<kHalf * 2>(task, 0);
        } else {
#pragma unroll
            for (int piece = 0; piece < kHalf / kPiece; ++piece) {
                __syncwarp();  // everybody has read what lay there
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    // Packed at once: four registers become one.
                    std::uint32_t packed[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int at = kPiece * piece + 8 * j + 2 * i;
                        packed[i] = pack_bf16(
                            activation(sums[at], sums[kHalf + at], weight[i % 2]),
                            activation(sums[at + 1], sums[kHalf + at + 1], weight[i % 2]));
                    }
                    stage_columns(j, packed);
                }
                send_first<kPieceColumns * 2>(task, piece);
            }
        }
        report(p.at.first_done, task);
    }

    /// Linear-2: a tile's columns of output, to the ranks that own the rows' tokens.
    __device__ __forceinline__ void store_second(float (&sums)[kSums], const Task& task) const {
        const KernelParams& p = me.p;
        const int lane = this->lane();
        unsigned char* const staged = staging();
        const std::uint32_t* routes = me.at<std::uint32_t>(p.at.row_route) + first_pool_row(task);
        std::byte* to[4];
        [[maybe_unused]] unsigned away = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 4 * i + lane / 8;
            to[i] = nullptr;
            if (first_row() + row >= task.rows) continue;
            const std::uint32_t packed = __ldcg(routes + row);
            to[i] = me.peer_at<std::byte>(rank_of(packed), p.at.combine) +
                    (std::int64_t{route_of(packed)} * p.hidden + task.n * kTileColumns) * 2 +
                    lane % 8 * 16;
            if constexpr (C::kStamped)
                away += lane % 8 == 0 && rank_of(packed) != me.args().rank ? 1 : 0;
        }
        if constexpr (C::kStamped) mark(away);
        const bool bulk = p.store == StorePath::kBulk;
#pragma unroll
        for (int piece = 0; piece < kSums / kPiece; ++piece) {
            if (bulk) device::bulk_wait_read<0>();
            stage_bf16(&sums[kPiece * piece]);
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
        if constexpr (C::kStamped) stamp(task);
        if (p.at.ring_blocks < p.at.max_blocks) report(p.at.second_done, task);
    }

  private:
    __device__ __forceinline__ float activation(float gate, float up, float weight) const {
        return swiglu(gate, up, me.p.clamp) * weight;
    }

    __device__ __forceinline__ BurstMark& burst() const {
        return shared.burst[group * 4 + warp];
    }

    /// A burst begins. `away`: rows of this lane's that another rank owns.
    __device__ __forceinline__ void mark(unsigned away) const {
        away = __reduce_add_sync(0xffffffffU, away);
        if (lane() != 0) return;
        burst().away = away;
        burst().cycles = device::clock_cycles();
        burst().ns = device::global_ns();
    }

    __device__ __forceinline__ void stamp(const Task& task) const {
        const int rows = min(16, task.rows - first_row());
        __syncwarp();  // all lanes have stored
        if (lane() != 0 || rows <= 0) return;
        device::Stamper stamper(
            me.args().stamps,
            static_cast<std::uint32_t>(me.cta() * kStoringWarps + group * 4 + warp),
            burst().before++);
        stamper.end({burst().cycles, burst().ns},
                    static_cast<std::uint32_t>(rows * kTileColumns * 2), burst().away);
    }

    /// 64 columns of the warp's 16 rows.
    __device__ __forceinline__ void stage_bf16(const float* sums) const {
        __syncwarp();  // everybody has read what lay there
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float* from = sums + 8 * j;
            stage_columns(j, {pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]),
                              pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7])});
        }
        __syncwarp();
    }
    /// 16 of the columns.
    __device__ __forceinline__ void stage_columns(int number,
                                                  const std::uint32_t (&packed)[4]) const {
        const int lane = this->lane();
        device::stmatrix_x4(device::shared_address(staging()) + lane % 16 * kStagedPitch +
                                lane / 16 * 16 + 32 * number,
                            packed[0], packed[1], packed[2], packed[3]);
    }

    /// kBytes staged bytes of each row to the pool: of this group's part of the tile's columns,
    /// number `piece`. All is worked out here, where the sums need their registers no more.
    template <int kBytes>
    __device__ __forceinline__ void send_first(const Task& task, int piece) const {
        constexpr int kLanes = kBytes / 16;  // of a row
        const KernelParams& p = me.p;
        const int lane = this->lane();
        const std::int64_t pitch = std::int64_t{p.intermediate} * C::kElementBytes;
        const int column = task.n * kHalfColumns + piece * kPieceColumns;
        std::byte* const block = me.at<std::byte>(p.at.act) +
                                 std::int64_t{task.slot} * kTileRows * pitch +
                                 std::int64_t{column} * C::kElementBytes;
        const unsigned char* const staged = staging();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kLanes / 2; ++i) {
            const int row = 32 / kLanes * i + lane / kLanes;
            if (first_row() + row >= task.rows) continue;
            device::st_weak_v4(
                block + (first_row() + row) * pitch + lane % kLanes * 16,
                device::ld_shared_v4(staged + row * kStagedPitch + lane % kLanes * 16));
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
