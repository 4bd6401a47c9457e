#include <cuda_runtime_api.h>

#include <stdexcept>

#include <cmath>

#include "gpu_device.hpp"

namespace xstage::ulysses::suite {
namespace {

constexpr int kThreads = 128;

/// The same in all threads, by a fixed tree.
template <class F>
__device__ float over_block(float value, float* shared, F f) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int d = kThreads / 2; d > 0; d /= 2) {
        if (static_cast<int>(threadIdx.x) < d)
            shared[threadIdx.x] = f(shared[threadIdx.x], shared[threadIdx.x + d]);
        __syncthreads();
    }
    const float result = shared[0];
    __syncthreads();
    return result;
}

template <class T>
__global__ void __launch_bounds__(kThreads) attention(const __grid_constant__ AttentionCall c) {
    extern __shared__ float score[];
    __shared__ float shared[kThreads];
    const int head = static_cast<int>(blockIdx.y);
    const int b = static_cast<int>(blockIdx.z);
    const std::int64_t row = blockIdx.x;
    const int kv = head / (c.heads_q / c.heads_kv);
    const std::int64_t keys =
        c.kv_lengths == nullptr ? c.rows_kv : c.kv_lengths[b * c.kv_lengths_stride];
    const auto at = [](const View& v, int batch, std::int64_t r, int h) {
        return static_cast<T*>(v.data) + batch * v.batch_stride + r * v.row_stride +
               h * v.head_stride;
    };
    const T* q = at(c.q, b, row, head);
    float most = -INFINITY;
    for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
        const T* k = at(c.k, b, j, kv);
        float dot = 0;
        for (int e = 0; e < c.head_dim; ++e) dot = __fmaf_rn(q[e].value(), k[e].value(), dot);
        score[j] = dot * c.scale;
        most = fmaxf(most, score[j]);
    }
    most = over_block(most, shared, [](float x, float y) { return fmaxf(x, y); });
    float total = 0;
    for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
        score[j] = __expf(score[j] - most);
        total += score[j];
    }
    total = over_block(total, shared, [](float x, float y) { return x + y; });
    for (int e = static_cast<int>(threadIdx.x); e < c.head_dim; e += kThreads) {
        float sum = 0;
        for (std::int64_t j = 0; j < keys; ++j)
            sum = __fmaf_rn(score[j], at(c.v, b, j, kv)[e].value(), sum);
        at(c.out, b, row, head)[e] = T::from(keys == 0 ? 0.0f : sum / total);
    }
    if (c.lse.data != nullptr && threadIdx.x == 0)
        c.lse.data[b * c.lse.batch_stride + head * c.lse.head_stride + row] =
            keys == 0 ? -INFINITY : most + __logf(total);
}

}  // namespace

void naive_attention(const AttentionCall& call) {
    if (call.rows_q == 0) return;
    const dim3 grid(static_cast<unsigned>(call.rows_q), static_cast<unsigned>(call.heads_q),
                    static_cast<unsigned>(call.batch));
    // Whole words of 16 bytes: for the last one to three keys the compiler still loads four scores.
    const std::size_t shared = static_cast<std::size_t>((call.rows_kv + 3) / 4 * 4) * sizeof(float);
    const auto stream = static_cast<cudaStream_t>(call.stream);
    cudaError_t error = cudaSuccess;
    with_storage(call.dtype, [&](auto type) {
        using T = decltype(type);
        error = cudaFuncSetAttribute(attention<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared));
        if (error == cudaSuccess) attention<T><<<grid, kThreads, shared, stream>>>(call);
    });
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

}  // namespace xstage::ulysses::suite
