#pragma once

// C = A * B^T in bf16 with f32 sums, tiles of 128 x 128, one persistent CTA per SM. The epilogue
// stores a tile, 32 KiB, straight to the GPU that owns it. It is small and plain on purpose: what
// matters here are the three lines about the epilogue that stamp it.

#include <cuda_bf16.h>
#include <mma.h>

#include <cstdint>
#include <xstage/device/ptx.cuh>
#include <xstage/device/stamp.cuh>

namespace gemm_epilogue {

constexpr int kTile = 128;
constexpr int kStep = 32;      // of the K dimension
constexpr int kThreads = 256;  // eight warps of 32 x 64 outputs
constexpr int kPad = 8;        // elements: rows start in different banks
constexpr int kMaxOwners = 8;

struct Params {
    const __nv_bfloat16* a;        // [m, k]
    const __nv_bfloat16* b;        // [n, k]
    __nv_bfloat16* c[kMaxOwners];  // [m, n] on each owner; tile t belongs to owner t % owners
    int m, n, k, owners;
    xstage::StampBuffer stamps;
};

constexpr int kOperandBytes = 2 * kTile * (kStep + kPad) * 2;
constexpr int kStageBytes = kTile * (kTile + kPad) * 4;
constexpr int kSharedBytes = kStageBytes > kOperandBytes ? kStageBytes : kOperandBytes;

/// Stands in for the stamper in the same kernel without stamps.
struct NoStamps {
    struct Mark {};
    __device__ NoStamps(xstage::StampBuffer, std::uint32_t) {}
    __device__ Mark begin() const { return {}; }
    __device__ void end(Mark, std::uint32_t, std::uint32_t) {}
};

__device__ inline void load_operand(__nv_bfloat16* shared, const __nv_bfloat16* from,
                                    int row_stride) {
    // 128 rows of 32 elements: four 16-byte pieces a row, two pieces a thread.
    for (int piece = threadIdx.x; piece < kTile * kStep / 8; piece += kThreads) {
        const int row = piece / 4, column = piece % 4 * 8;
        *reinterpret_cast<uint4*>(shared + row * (kStep + kPad) + column) =
            xstage::device::ld_weak_v4(from + std::int64_t{row} * row_stride + column);
    }
}

template <class Recorder>
__global__ void __launch_bounds__(kThreads) gemm(const __grid_constant__ Params p) {
    namespace wmma = nvcuda::wmma;
    extern __shared__ __align__(128) std::uint8_t shared[];
    auto* a_tile = reinterpret_cast<__nv_bfloat16*>(shared);
    auto* b_tile = a_tile + kTile * (kStep + kPad);
    auto* stage = reinterpret_cast<float*>(shared);
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 64;
    const int columns = p.n / kTile;
    const int tiles = p.m / kTile * columns;
    Recorder recorder(p.stamps, blockIdx.x);

    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int row = tile / columns * kTile, column = tile % columns * kTile;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][4];
        for (auto& line : sum) {
            for (auto& fragment : line) wmma::fill_fragment(fragment, 0.0f);
        }
        for (int k = 0; k < p.k; k += kStep) {
            load_operand(a_tile, p.a + std::int64_t{row} * p.k + k, p.k);
            load_operand(b_tile, p.b + std::int64_t{column} * p.k + k, p.k);
            __syncthreads();
            for (int inner = 0; inner < kStep; inner += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a[2];
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b[4];
                for (int i = 0; i < 2; ++i) {
                    wmma::load_matrix_sync(
                        a[i], a_tile + (warp_row + 16 * i) * (kStep + kPad) + inner, kStep + kPad);
                }
                for (int j = 0; j < 4; ++j) {
                    wmma::load_matrix_sync(b[j],
                                           b_tile + (warp_column + 16 * j) * (kStep + kPad) + inner,
                                           kStep + kPad);
                }
                for (int i = 0; i < 2; ++i) {
                    for (int j = 0; j < 4; ++j) wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
                }
            }
            __syncthreads();
        }
        for (int i = 0; i < 2; ++i) {
            for (int j = 0; j < 4; ++j) {
                wmma::store_matrix_sync(
                    stage + (warp_row + 16 * i) * (kTile + kPad) + warp_column + 16 * j, sum[i][j],
                    kTile + kPad, wmma::mem_row_major);
            }
        }
        __syncthreads();

        const int owner = tile % p.owners;
        typename Recorder::Mark mark{};
        if (threadIdx.x == 0) mark = recorder.begin();
        for (int piece = threadIdx.x; piece < kTile * kTile / 8; piece += kThreads) {
            const int r = piece / 16, c = piece % 16 * 8;
            const float* from = stage + r * (kTile + kPad) + c;
            __nv_bfloat162 pair[4];
            for (int i = 0; i < 4; ++i) {
                pair[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
            }
            xstage::device::st_weak_v4(p.c[owner] + std::int64_t{row + r} * p.n + column + c,
                                       *reinterpret_cast<const uint4*>(pair));
        }
        __syncthreads();  // the leader speaks for all storing threads; the stage is free again
        if (threadIdx.x == 0) recorder.end(mark, kTile * kTile * 2, owner);
    }
}

}  // namespace gemm_epilogue
