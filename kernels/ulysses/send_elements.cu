// The first all-to-all for heads that 16-byte accesses do not fit, and the sums for norms over the
// full width of a row.

#include <algorithm>

#include "ulysses/lanes.cuh"

namespace xstage::ulysses::kernels {
namespace {

/// Any head dimension and alignment, a warp to a (row, destination), element by element.
template <class T>
__global__ void __launch_bounds__(kThreads) send_elements(const __grid_constant__ HeadScatter s) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t rows = s.rows * s.batch;
    const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
    for (std::int64_t i = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
         i < rows * s.world; i += warps) {
        const SendStep step = send_step(s.order, s.rank, s.world, rows, i);
        const auto b = static_cast<int>(step.row / s.rows);
        const std::int64_t row = step.row % s.rows;
        const int peer = step.destination;
        for (int h = 0; h < s.head_count[peer]; ++h) {
            const int head = s.first_head[peer] + h;
            const T* x = static_cast<const T*>(s.from) + b * s.from_batch + row * s.from_row +
                         head * s.from_head;
            T* y = static_cast<T*>(s.to[peer]) + b * s.to_batch[peer] +
                   axis_row(s.map, s.map_rank, row) * s.to_row[peer] + std::int64_t{h} * s.head_dim;
            float rstd = 1;
            if (s.norm.kind == NormKind::kFullWidth) rstd = s.rstd[step.row];
            if (s.norm.kind == NormKind::kPerHead) {
                float mine = 0;
                for (int g = lane; g * kSumGroup < s.head_dim; g += 32) {
                    float sum = 0;
                    for (int e = g * kSumGroup; e < min(s.head_dim, (g + 1) * kSumGroup); ++e)
                        sum = exact::add(sum, exact::mul(x[e].value(), x[e].value()));
                    mine = exact::add(mine, sum);
                }
                mine = sum_over(mine, 32, ~0u);
                rstd = exact::rsqrt(
                    exact::add(__fdiv_rn(mine, static_cast<float>(s.head_dim)), s.norm.eps));
            }
            const std::int64_t weight =
                s.norm.kind == NormKind::kFullWidth ? std::int64_t{head} * s.head_dim : 0;
            const Rotary& r = s.rotary;
            const std::int64_t table =
                b * r.batch_stride + row * r.row_stride + head * r.head_stride;
            for (int e = lane; e < s.head_dim; e += 32)
                y[e] = sent_element(s.norm, r, x, rstd, weight, table, e);
        }
    }
}

/// A block to a row.
template <class T>
__global__ void __launch_bounds__(kRowLanes) sum_rows(const __grid_constant__ HeadExchange all) {
    __shared__ float warp_sum[kRowLanes / 32];
    const HeadScatter& s = all.part[blockIdx.y];
    if (s.norm.kind != NormKind::kFullWidth) return;
    const std::int64_t width = std::int64_t{s.heads} * s.head_dim;
    for (std::int64_t i = blockIdx.x; i < s.rows * s.batch; i += gridDim.x) {
        const T* x =
            static_cast<const T*>(s.from) + i / s.rows * s.from_batch + i % s.rows * s.from_row;
        float mine = 0;
        for (std::int64_t g = threadIdx.x; g * kSumGroup < width; g += kRowLanes) {
            float sum = 0;
            const std::int64_t e = g * kSumGroup;
            const T* at = x + e / s.head_dim * s.from_head + e % s.head_dim;
            bool vector = false;
            if constexpr (sizeof(T) == 2)
                vector =
                    s.head_dim % kVector == 0 && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
            if (vector) {
                if constexpr (sizeof(T) == 2) sum = sum_of_squares(load(at));
            } else {
                for (std::int64_t j = e; j < min(width, e + kSumGroup); ++j) {
                    const float v = x[j / s.head_dim * s.from_head + j % s.head_dim].value();
                    sum = exact::add(sum, exact::mul(v, v));
                }
            }
            mine = exact::add(mine, sum);
        }
        mine = sum_over(mine, 32, ~0u);
        if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = mine;
        __syncthreads();
        if (threadIdx.x == 0) {
            float sum = warp_sum[0];
            for (int w = 1; w < kRowLanes / 32; ++w) sum = exact::add(sum, warp_sum[w]);
            s.rstd[i] =
                exact::rsqrt(exact::add(__fdiv_rn(sum, static_cast<float>(width)), s.norm.eps));
        }
        __syncthreads();
    }
}

constexpr std::int64_t kMostBlocks = 1056;  // eight per SM; more would only queue

template <class T>
cudaError_t launch_elements(const HeadScatter& s, cudaStream_t stream) {
    const std::int64_t warps = s.rows * s.batch * s.world;
    const std::int64_t most = s.blocks > 0 ? s.blocks : kMostBlocks;
    const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>((warps + 7) / 8, 1, most));
    send_elements<T><<<blocks, kThreads, 0, stream>>>(s);
    return cudaGetLastError();
}

}  // namespace

cudaError_t send_by_elements(const HeadScatter& s, cudaStream_t stream) {
    switch (s.dtype) {
        case fabric::DType::kBf16:
            return launch_elements<Bf16>(s, stream);
        case fabric::DType::kF16:
            return launch_elements<Fp16>(s, stream);
        case fabric::DType::kF32:
            return launch_elements<Fp32>(s, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t row_rstd(const HeadExchange& all, cudaStream_t stream) {
    std::int64_t rows = 0;
    for (int i = 0; i < all.count; ++i)
        if (all.part[i].norm.kind == NormKind::kFullWidth)
            rows = std::max(rows, all.part[i].rows * all.part[i].batch);
    if (rows == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(std::min(rows, kMostBlocks)),
                    static_cast<unsigned>(all.count));
    switch (all.part[0].dtype) {
        case fabric::DType::kBf16:
            sum_rows<Bf16><<<grid, kRowLanes, 0, stream>>>(all);
            break;
        case fabric::DType::kF16:
            sum_rows<Fp16><<<grid, kRowLanes, 0, stream>>>(all);
            break;
        case fabric::DType::kF32:
            sum_rows<Fp32><<<grid, kRowLanes, 0, stream>>>(all);
            break;
        default:
            return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

cudaError_t preload_elements() {
    cudaFuncAttributes a{};
    const void* kernels[] = {reinterpret_cast<const void*>(send_elements<Bf16>),
                             reinterpret_cast<const void*>(send_elements<Fp16>),
                             reinterpret_cast<const void*>(send_elements<Fp32>),
                             reinterpret_cast<const void*>(sum_rows<Bf16>),
                             reinterpret_cast<const void*>(sum_rows<Fp16>),
                             reinterpret_cast<const void*>(sum_rows<Fp32>)};
    cudaError_t error = cudaSuccess;
    for (const void* kernel : kernels)
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&a, kernel);
    return error;
}

}  // namespace xstage::ulysses::kernels
