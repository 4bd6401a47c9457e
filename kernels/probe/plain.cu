// The plain kernels about the store loop: fill, read, check, the background stream of the other
// direction, the spin that keeps a clock up, and the map of which SMs share a GPC.

#include <xstage/device/store_path.cuh>
#include <xstage/device/sync.cuh>

#include "launch.hpp"

namespace xstage::probe {
namespace {

using namespace xstage::device;

__global__ void fill_kernel(char* to, std::uint64_t bytes, std::uint32_t seed, int repeats) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
    for (int repeat = 0; repeat < repeats; ++repeat) {
#pragma unroll 4
        for (std::uint64_t v = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; v < bytes / 16;
             v += stride) {
            const std::uint32_t w = burst_word(seed + repeat, static_cast<std::uint32_t>(v) * 4);
            st_weak_v4(to + v * 16, make_uint4(w, w + 1, w + 2, w + 3));
        }
    }
    // The launch's end alone need not mean that a peer has the bytes; the fence does.
    fence_acq_rel_sys();
}

__global__ void read_kernel(const char* from, std::uint64_t bytes, int repeats,
                            std::uint32_t* sink) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
    std::uint32_t sum = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        std::uint64_t v = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
        for (; v + 7 * stride < bytes / 16; v += 8 * stride) {
            uint4 got[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) got[i] = ld_no_l1_v4(from + (v + i * stride) * 16);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += got[i].x ^ got[i].y ^ got[i].z ^ got[i].w;
        }
        for (; v < bytes / 16; v += stride) sum += ld_no_l1_v4(from + v * 16).x;
    }
    if (sum == 0xdeadbeefu) *sink = sum;
}

__global__ void check_kernel(const char* at, std::uint64_t bytes, std::uint64_t piece,
                             std::uint32_t seed, unsigned long long* wrong) {
    const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
    unsigned long long bad = 0;
    for (std::uint64_t v = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; v < bytes / 16;
         v += stride) {
        const uint4 got = ld_no_l1_v4(at + v * 16);
        const std::uint32_t w = burst_word(seed, static_cast<std::uint32_t>(v % (piece / 16)) * 4);
        bad += (got.x != w) + (got.y != w + 1) + (got.z != w + 2) + (got.w != w + 3);
    }
    if (bad != 0) atomicAdd(wrong, bad);
}

__global__ void background_kernel(char* to, std::uint64_t bytes, const std::uint32_t* stop,
                                  std::uint64_t budget_ns, unsigned long long* stored,
                                  WaitReport* report) {
    constexpr std::uint64_t kPiece = 65536;
    const Deadline deadline(budget_ns);
    const std::uint64_t pieces = bytes / kPiece;
    std::uint64_t piece = blockIdx.x;
    unsigned long long done = 0;
    for (;;) {
        // One vote per CTA, so that no thread of it stores a piece alone.
        if (__syncthreads_or(threadIdx.x == 0 && ld_acquire_gpu_u32(stop) != 0)) break;
        if (__syncthreads_or(threadIdx.x == 0 && deadline.passed())) {
            if (threadIdx.x == 0) report_timeout(report, WaitPlace::kStop, 0, 0);
            break;
        }
        char* at = to + piece * kPiece;
#pragma unroll 4
        for (std::uint32_t b = threadIdx.x * 16; b < kPiece; b += blockDim.x * 16) {
            st_weak_v4(at + b, make_uint4(b, b, b, b));
        }
        piece += gridDim.x;
        if (piece >= pieces) piece -= pieces;
        done += kPiece;
    }
    if (threadIdx.x == 0) atomicAdd(stored, done);
}

__global__ void spin_kernel(std::uint64_t ns) {
    spin_until_ns(global_ns() + ns);
}

__global__ void cluster_map_kernel(std::uint32_t* sm_of_cta) {
    if (threadIdx.x == 0) sm_of_cta[blockIdx.x] = sm_id();
    // Stay until the rest of the grid is placed, or one SM would serve several CTAs in turn.
    spin_until_ns(global_ns() + 20000);
}

}  // namespace

cudaError_t prepare_plain_kernels() {
    cudaFuncAttributes attributes;
    for (const void* kernel :
         {reinterpret_cast<const void*>(fill_kernel), reinterpret_cast<const void*>(read_kernel),
          reinterpret_cast<const void*>(check_kernel),
          reinterpret_cast<const void*>(background_kernel),
          reinterpret_cast<const void*>(spin_kernel)}) {
        if (const auto error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) {
            return error;
        }
    }
    if (const auto error =
            cudaFuncSetAttribute(reinterpret_cast<const void*>(cluster_map_kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, 160 * 1024);
        error != cudaSuccess) {
        return error;
    }
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(cluster_map_kernel),
                                cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

cudaError_t launch_fill(char* to, std::uint64_t bytes, std::uint32_t seed, int ctas, int threads,
                        int repeats, cudaStream_t stream) {
    fill_kernel<<<ctas, threads, 0, stream>>>(to, bytes, seed, repeats);
    return cudaGetLastError();
}

cudaError_t launch_read(const char* from, std::uint64_t bytes, int ctas, int threads, int repeats,
                        std::uint32_t* sink, cudaStream_t stream) {
    read_kernel<<<ctas, threads, 0, stream>>>(from, bytes, repeats, sink);
    return cudaGetLastError();
}

cudaError_t launch_check(const char* at, std::uint64_t bytes, std::uint64_t piece,
                         std::uint32_t seed, unsigned long long* wrong, cudaStream_t stream) {
    check_kernel<<<264, 512, 0, stream>>>(at, bytes, piece, seed, wrong);
    return cudaGetLastError();
}

cudaError_t launch_background(char* to, std::uint64_t bytes, const std::uint32_t* stop,
                              std::uint64_t budget_ns, int ctas, unsigned long long* stored,
                              device::WaitReport* report, cudaStream_t stream) {
    background_kernel<<<ctas, 256, 0, stream>>>(to, bytes, stop, budget_ns, stored, report);
    return cudaGetLastError();
}

cudaError_t launch_spin(std::uint64_t ns, int ctas, cudaStream_t stream) {
    spin_kernel<<<ctas, 256, 0, stream>>>(ns);
    return cudaGetLastError();
}

cudaError_t launch_cluster_map(std::uint32_t* sm_of_cta, int ctas, int cluster,
                               cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ctas));
    config.blockDim = dim3(128);
    config.dynamicSmemBytes = 160 * 1024;  // one CTA per SM
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, cluster_map_kernel, sm_of_cta);
}

}  // namespace xstage::probe
