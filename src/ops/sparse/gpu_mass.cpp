#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "attention/block_mass.cuh"
#include "ops/sparse/engine.hpp"
#include "xstage/error.hpp"

namespace xstage::ops {

namespace {

void check_cuda(cudaError_t status, const char* what) {
    if (status != cudaSuccess)
        throw Error(ErrorKind::kEnvironment,
                    fmt::format("{}: {}", what, cudaGetErrorString(status)));
}

void require(bool condition, const char* what) {
    if (!condition) throw Error(ErrorKind::kBadInput, fmt::format("attention mass: {}", what));
}

struct Free {
    void operator()(void* memory) const { cudaFree(memory); }
};
template <class T>
std::unique_ptr<T, Free> device_memory(std::size_t count) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, std::max<std::size_t>(1, count) * sizeof(T)),
               "memory for the attention mass");
    return std::unique_ptr<T, Free>(static_cast<T*>(memory));
}

template <class T>
std::vector<T> host_copy(const T* from, std::size_t count, cudaStream_t stream) {
    std::vector<T> values(count);
    check_cuda(
        cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "copy of the attention mass");
    check_cuda(cudaStreamSynchronize(stream), "the attention mass");
    return values;
}

void check_view(const ulysses::View& v) {
    constexpr std::int64_t kElements = 8;  // of 16 bytes
    require(reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.row_stride % kElements == 0 &&
                v.head_stride % kElements == 0,
            "addresses and strides of q and k must be multiples of 16 bytes");
}

}  // namespace

Mass mass_on_gpu(const MassCall& c) {
    require(c.dtype == fabric::DType::kF16 || c.dtype == fabric::DType::kBf16,
            "dtype must be F16 or BF16 on a GPU");
    require(c.head_dim % 8 == 0 && c.head_dim <= 128,
            "head_dim must be a multiple of 8 up to 128 on a GPU");
    require(c.heads_q <= 65535, "too many heads");
    check_view(c.q);
    check_view(c.k);
    const auto stream = static_cast<cudaStream_t>(c.stream);
    const auto heads = static_cast<std::size_t>(c.heads_q);
    const auto blocks = static_cast<std::size_t>((c.rows + 127) / 128);
    const std::size_t samples = c.sampled_rows.size();
    const auto mass = device_memory<float>(heads * blocks * blocks);
    const auto row_mass = device_memory<float>(heads * samples * blocks);
    const auto rows = device_memory<std::int32_t>(samples);
    const std::vector<std::int32_t> rows_here(c.sampled_rows.begin(), c.sampled_rows.end());
    check_cuda(cudaMemcpyAsync(rows.get(), rows_here.data(), samples * sizeof(std::int32_t),
                               cudaMemcpyHostToDevice, stream),
               "copy of the sampled rows");

    kernels::MassParams p;
    p.q = c.q.data;
    p.k = c.k.data;
    p.q_row = c.q.row_stride;
    p.q_head = c.q.head_stride;
    p.k_row = c.k.row_stride;
    p.k_head = c.k.head_stride;
    p.rows = static_cast<int>(c.rows);
    p.heads = c.heads_q;
    p.heads_per_kv_head = c.heads_q / c.heads_kv;
    p.head_dim = c.head_dim;
    const float scale = c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<float>(c.head_dim));
    p.scale_log2 = scale * 1.4426950408889634F;
    p.lse = c.lse;
    p.mass = mass.get();
    p.sampled_rows = rows.get();
    p.sampled_count = static_cast<int>(samples);
    p.row_mass = row_mass.get();
    check_cuda(static_cast<cudaError_t>(
                   kernels::launch_block_mass(p, c.dtype == fabric::DType::kBf16, c.stream)),
               "launch of the attention mass");
    return {host_copy(mass.get(), heads * blocks * blocks, stream),
            host_copy(row_mass.get(), heads * samples * blocks, stream)};
}

}  // namespace xstage::ops
