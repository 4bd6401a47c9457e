// Attention mass by block of 128 queries x 128 keys: mass[h][u][v] is the mean over the rows of
// query block u of sum_{j in v} softmax(scale * q K^T)_j. The scores live in registers, one tile at
// a time. With the rows' LSE, which a dense attention leaves behind, one pass over the keys does;
// without, a first pass finds it. One CTA per (query block, head); a warp has 16 of its rows, and
// all share each key block. Plain warp-wide products: this runs once a model, not once a step.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "attention/block_mass.cuh"
#include "xstage/device/mma.cuh"
#include "xstage/device/warpgroup.cuh"

namespace xstage::kernels {
namespace {

constexpr int kBlock = 128;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr float kLog2E = 1.4426950408889634F;
// Rows of shared memory are 16 bytes longer, so that the eight rows of an ldmatrix lie in different
// banks.
constexpr int kPadBytes = 16;

template <int kDim>
constexpr int kRowBytes = kDim * 2 + kPadBytes;

__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                    const std::uint32_t (&b)[2], __nv_bfloat16) {
    device::mma_m16n8k16_bf16(d, a, b);
}
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                    const std::uint32_t (&b)[2], __half) {
    device::mma_m16n8k16_fp16(d, a, b);
}

/// Starts the copy of 128 rows from row `first` on; rows and columns that do not exist become 0.
template <int kDim, class T>
__device__ void fetch(std::uint32_t to, const T* head, std::int64_t stride, int first, int rows,
                      int head_dim) {
    constexpr int kChunks = kDim / 8;  // of 16 bytes
    for (int i = static_cast<int>(threadIdx.x); i < kBlock * kChunks; i += kThreads) {
        const int row = i / kChunks;
        const int column = i % kChunks * 8;
        const bool valid = first + row < rows && column < head_dim;
        // An address that is not read must still be one.
        const T* from = valid ? head + (first + row) * stride + column : head;
        device::cp_async_16(to + row * kRowBytes<kDim> + column * 2, from, valid);
    }
}

/// Sum over the four lanes that share a row of a product.
__device__ __forceinline__ float over_row(float x) {
    x += __shfl_xor_sync(~0U, x, 1);
    return x + __shfl_xor_sync(~0U, x, 2);
}
__device__ __forceinline__ float most_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}

/// The scores of 16 rows x 16 keys from key `n` of the tile on, in units of log2.
template <int kDim, class T>
__device__ __forceinline__ void scores(float (&s)[2][4], const std::uint32_t (&q)[kDim / 16][4],
                                       std::uint32_t keys, int n, float scale_log2) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int key = n + lane % 8 + lane / 16 * 8;
    const std::uint32_t at = keys + key * kRowBytes<kDim> + lane / 8 % 2 * 16;
#pragma unroll
    for (auto& tile : s)
        for (float& x : tile) x = 0;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
        std::uint32_t k[4];
        device::ldmatrix_x4(at + i * 32, k);
        const std::uint32_t low[2] = {k[0], k[1]};
        const std::uint32_t high[2] = {k[2], k[3]};
        mma(s[0], q[i], low, T{});
        mma(s[1], q[i], high, T{});
    }
#pragma unroll
    for (auto& tile : s)
        for (float& x : tile) x *= scale_log2;
}

/// Calls f(key block, its keys in shared memory) for all blocks; the next one is on its way
/// meanwhile. All threads are past a call before its buffer is filled again.
template <int kDim, class T, class F>
__device__ void for_each_block(const MassParams& p, const T* head, std::uint32_t buffers, F&& f) {
    constexpr int kBytes = kBlock * kRowBytes<kDim>;
    const int blocks = (p.rows + kBlock - 1) / kBlock;
    fetch<kDim>(buffers, head, p.k_row, 0, p.rows, p.head_dim);
    device::cp_async_commit();
    for (int v = 0; v < blocks; ++v) {
        if (v + 1 < blocks)
            fetch<kDim>(buffers + (v + 1) % 2 * kBytes, head, p.k_row, (v + 1) * kBlock, p.rows,
                        p.head_dim);
        device::cp_async_commit();
        device::cp_async_wait<1>();
        __syncthreads();
        f(v, buffers + v % 2 * kBytes);
        __syncthreads();
    }
}

template <int kDim, class T>
__global__ void __launch_bounds__(kThreads) block_mass(const __grid_constant__ MassParams p) {
    extern __shared__ uint4 shared[];
    __shared__ float partial[2][kWarps];
    const int u = static_cast<int>(blockIdx.x);
    const int head = static_cast<int>(blockIdx.y);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int blocks = (p.rows + kBlock - 1) / kBlock;
    const std::uint32_t queries = device::shared_address(shared);
    const std::uint32_t keys = queries + kBlock * kRowBytes<kDim>;
    const T* k = static_cast<const T*>(p.k) + head / p.heads_per_kv_head * p.k_head;

    fetch<kDim>(queries, static_cast<const T*>(p.q) + head * p.q_head, p.q_row, u * kBlock, p.rows,
                p.head_dim);
    device::cp_async_commit();
    device::cp_async_wait<0>();
    __syncthreads();
    std::uint32_t q[kDim / 16][4];
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
        device::ldmatrix_x4(
            queries + (warp * 16 + lane % 16) * kRowBytes<kDim> + i * 32 + lane / 16 * 16, q[i]);

    // Of this thread's two rows, lane / 4 and 8 more.
    const int row[2] = {u * kBlock + warp * 16 + lane / 4, u * kBlock + warp * 16 + lane / 4 + 8};
    float lse[2];
    if (p.lse != nullptr) {
        for (int r = 0; r < 2; ++r)
            lse[r] = row[r] < p.rows
                         ? p.lse[static_cast<std::int64_t>(head) * p.rows + row[r]] * kLog2E
                         : 0;
    } else {
        float most[2] = {-INFINITY, -INFINITY};
        float sum[2] = {0, 0};
        for_each_block<kDim>(p, k, keys, [&](int v, std::uint32_t tile) {
            for (int n = 0; n < kBlock; n += 16) {
                float s[2][4];
                scores<kDim, T>(s, q, tile, n, p.scale_log2);
                const int column = v * kBlock + n + lane % 4 * 2;
                for (int r = 0; r < 2; ++r) {
                    float x[4];
                    float highest = most[r];
                    for (int i = 0; i < 4; ++i) {
                        x[i] = s[i / 2][r * 2 + i % 2];
                        if (column + i / 2 * 8 + i % 2 >= p.rows) x[i] = -INFINITY;
                        highest = fmaxf(highest, x[i]);
                    }
                    if (highest == -INFINITY) continue;  // no key of this lane yet
                    sum[r] *= device::exp2_approx(most[r] - highest);
                    for (const float e : x) sum[r] += device::exp2_approx(e - highest);
                    most[r] = highest;
                }
            }
        });
        for (int r = 0; r < 2; ++r) {
            const float highest = most_of_row(most[r]);
            lse[r] = highest + log2f(over_row(sum[r] * device::exp2_approx(most[r] - highest)));
        }
    }

    const int rows_here = min(kBlock, p.rows - u * kBlock);
    for_each_block<kDim>(p, k, keys, [&](int v, std::uint32_t tile) {
        float sum[2] = {0, 0};
        for (int n = 0; n < kBlock; n += 16) {
            float s[2][4];
            scores<kDim, T>(s, q, tile, n, p.scale_log2);
            const int column = v * kBlock + n + lane % 4 * 2;
            for (int r = 0; r < 2; ++r) {
                for (int i = 0; i < 4; ++i) {
                    if (column + i / 2 * 8 + i % 2 >= p.rows) continue;
                    sum[r] += device::exp2_approx(s[i / 2][r * 2 + i % 2] - lse[r]);
                }
            }
        }
        float total = 0;
        for (int r = 0; r < 2; ++r) {
            // By all lanes: where the last rows are missing, the others would wait for them.
            sum[r] = over_row(sum[r]);
            if (row[r] >= p.rows) sum[r] = 0;
            total += sum[r];
        }
        for (int i = 0; lane % 4 == 0 && i < p.sampled_count; ++i) {
            for (int r = 0; r < 2; ++r) {
                if (p.sampled_rows[i] == row[r])
                    p.row_mass[(static_cast<std::int64_t>(head) * p.sampled_count + i) * blocks +
                               v] = sum[r];
            }
        }
        // Lanes of a row hold the same sum; one of every four is counted.
        total = lane % 4 == 0 ? total : 0;
        for (int step = 4; step < 32; step *= 2) total += __shfl_xor_sync(~0U, total, step);
        if (lane == 0) partial[v % 2][warp] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
            float all = 0;
            for (const float x : partial[v % 2]) all += x;
            p.mass[(static_cast<std::int64_t>(head) * blocks + u) * blocks + v] =
                all / static_cast<float>(rows_here);
        }
    });
}

int padded_dim(int head_dim) {
    return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : 128;
}

template <int kDim, class T>
cudaError_t launch(const MassParams& p, cudaStream_t stream) {
    const int bytes = block_mass_shared_bytes(kDim);
    const cudaError_t status = cudaFuncSetAttribute(
        block_mass<kDim, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    const dim3 grid(static_cast<unsigned>((p.rows + kBlock - 1) / kBlock),
                    static_cast<unsigned>(p.heads));
    block_mass<kDim, T><<<grid, kThreads, static_cast<std::size_t>(bytes), stream>>>(p);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_any(const MassParams& p, cudaStream_t stream) {
    switch (padded_dim(p.head_dim)) {
        case 32:
            return launch<32, T>(p, stream);
        case 64:
            return launch<64, T>(p, stream);
        default:
            return launch<128, T>(p, stream);
    }
}

}  // namespace

int block_mass_shared_bytes(int head_dim) {
    return 3 * kBlock * (padded_dim(head_dim) * 2 + kPadBytes);
}

int launch_block_mass(const MassParams& params, bool bf16, void* stream) {
    const auto s = static_cast<cudaStream_t>(stream);
    return bf16 ? launch_any<__nv_bfloat16>(params, s) : launch_any<__half>(params, s);
}

}  // namespace xstage::kernels
