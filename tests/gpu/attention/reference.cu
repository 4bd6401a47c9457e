#include "reference.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>

#include "xstage/sparse/mask.hpp"

namespace xstage::test {

namespace {

constexpr int kThreads = 128;

struct Problem {
    AttentionView q, k, v;
    std::int64_t heads, kv_heads, q_rows, kv_rows;
    int head_dim;
    const std::int32_t* key_lengths;
    double scale;
    bool causal;
    const std::uint32_t* bits;  ///< of a block mask, or null
    std::int64_t mask_batches, mask_heads, words;

    __device__ bool kept(std::int64_t batch, std::int64_t head, std::int64_t row,
                         std::int64_t key) const {
        if (bits == nullptr) return true;
        const std::int64_t mask_row =
            ((mask_batches == 1 ? 0 : batch) * mask_heads + head * mask_heads / heads) *
                ((q_rows + 127) / 128) +
            row / 128;
        return bits[mask_row * words + key / 128 / 32] >> (key / 128 % 32) & 1;
    }
};

template <class T>
__device__ double element(const AttentionView& view, std::int64_t batch, std::int64_t row,
                          std::int64_t head, int column) {
    return static_cast<double>(static_cast<float>(
        static_cast<const T*>(view.data)[batch * view.stride_batch + row * view.stride_row +
                                         head * view.stride_head + column]));
}

/// Every thread gets the sum or the maximum over the block. NaN wins in both.
__device__ double over_block(double mine, bool maximum, double* scratch) {
    scratch[threadIdx.x] = mine;
    __syncthreads();
    double all = scratch[0];
    for (int i = 1; i < kThreads; ++i) {
        const double other = scratch[i];
        if (!maximum) {
            all += other;
        } else if (other > all || isnan(other)) {
            all = other;
        }
    }
    __syncthreads();
    return all;
}

template <class T>
__global__ void attend(Problem p, double* out, double* lse) {
    extern __shared__ double weights[];  // one per key
    __shared__ double scratch[kThreads];
    const std::int64_t row = blockIdx.x;
    const std::int64_t head = blockIdx.y;
    const std::int64_t batch = blockIdx.z;
    const std::int64_t kv_head = head * p.kv_heads / p.heads;
    std::int64_t keys = p.kv_rows;
    if (p.key_lengths != nullptr) keys = p.key_lengths[batch];
    std::int64_t end = keys;
    if (p.causal) end = max(int64_t{0}, min(keys, row + keys - p.q_rows + 1));

    double most = -INFINITY;
    for (std::int64_t j = threadIdx.x; j < end; j += kThreads) {
        weights[j] = -INFINITY;
        if (!p.kept(batch, head, row, j)) continue;
        double dot = 0;
        for (int c = 0; c < p.head_dim; ++c) {
            dot += element<T>(p.q, batch, row, head, c) * element<T>(p.k, batch, j, kv_head, c);
        }
        weights[j] = dot * p.scale;
        if (weights[j] > most || isnan(weights[j])) most = weights[j];
    }
    most = over_block(most, true, scratch);
    double sum = 0;
    for (std::int64_t j = threadIdx.x; j < end; j += kThreads) {
        weights[j] = p.kept(batch, head, row, j) ? exp(weights[j] - most) : 0.0;
        sum += weights[j];
    }
    sum = over_block(sum, false, scratch);
    for (int c = threadIdx.x; c < p.head_dim; c += kThreads) {
        double value = 0;
        for (std::int64_t j = 0; j < end; ++j) {
            if (!p.kept(batch, head, row, j)) continue;
            value += weights[j] * element<T>(p.v, batch, j, kv_head, c);
        }
        out[((batch * p.q_rows + row) * p.heads + head) * p.head_dim + c] =
            sum == 0 ? 0.0 : value / sum;
    }
    if (threadIdx.x == 0) {
        lse[(batch * p.heads + head) * p.q_rows + row] = sum == 0 ? -INFINITY : most + log(sum);
    }
}

}  // namespace

void reference_attention(const AttentionArguments& a, double* out, double* lse) {
    const double scale = a.scale > 0 ? a.scale : 1.0 / std::sqrt(double(a.head_dim));
    Problem p{a.q,           a.k,   a.v,      a.heads, a.kv_heads, a.q_rows, a.kv_rows, a.head_dim,
              a.key_lengths, scale, a.causal, nullptr, 1,          1,        0};
    std::uint32_t* bits = nullptr;
    if (a.mask != nullptr) {
        const std::size_t bytes = a.mask->bits().size() * sizeof(std::uint32_t);
        if (cudaMalloc(&bits, bytes) != cudaSuccess) throw std::runtime_error("no memory");
        cudaMemcpy(bits, a.mask->bits().data(), bytes, cudaMemcpyHostToDevice);
        p.bits = bits;
        p.mask_batches = a.mask->batches();
        p.mask_heads = a.mask->heads();
        p.words = a.mask->words();
    }
    const auto kernel = a.type == AttentionType::kBf16 ? attend<__nv_bfloat16> : attend<__half>;
    const std::size_t shared = (a.kv_rows + 1) * sizeof(double);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    kernel<<<dim3(unsigned(a.q_rows), unsigned(a.heads), unsigned(a.batches)), kThreads, shared>>>(
        p, out, lse);
    const cudaError_t status = cudaDeviceSynchronize();
    cudaFree(bits);
    if (status != cudaSuccess) throw std::runtime_error("reference failed");
}

}  // namespace xstage::test
