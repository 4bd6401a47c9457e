// Ordering tests: a message of 2 KiB, then a flag, from one GPU to another; the reader acquires the
// flag at system scope and looks for words of an older generation. Only what stands between the
// message and the flag differs from cell to cell.
//
// Ring: message g of a channel (one warp on either side) lies in slot g % slots. The reader gives a
// slot back by writing g as the channel's credit, so the sender never overwrites an unread message
// and a word that is not g's was not yet written when the flag was seen.

#include <xstage/device/ptx.cuh>
#include <xstage/device/sync.cuh>

#include "launch.hpp"
#include "probe/node.hpp"

namespace xstage::probe {
namespace {

using namespace xstage::device;

constexpr std::uint32_t kWarps = 4;
constexpr std::uint32_t kReaderWarps = 8;

enum Path { kSt16, kBulk, kRed };

/// How often slot g % slots was used up to and with g: what a slot of additions then holds.
__device__ std::uint32_t uses(std::uint32_t g, std::uint32_t slots) {
    return g / slots + (g % slots != 0);
}

__device__ char* slot_of(const LitmusParams& p, std::uint32_t channel, std::uint32_t g) {
    return p.messages + (std::size_t{channel} * p.slots + g % p.slots) * kMessageBytes;
}

// ---- sender -------------------------------------------------------------------------------------

template <Path kPath>
__device__ void store_message(const LitmusParams& p, char* to, std::uint32_t g,
                              std::uint32_t* source) {
    const std::uint32_t lane = threadIdx.x % 32;
    if constexpr (kPath == kSt16) {
#pragma unroll
        for (std::uint32_t i = 0; i < kMessageBytes / 512; ++i) {
            st_weak_v4(to + i * 512 + lane * 16, make_uint4(g, g, g, g));
        }
    } else if constexpr (kPath == kRed) {
#pragma unroll
        for (std::uint32_t i = 0; i < kMessageBytes / 512; ++i) {
            red_relaxed_sys_add_f32x4(to + i * 512 + lane * 16, make_float4(1, 1, 1, 1));
        }
    } else {
        if (lane == 0) bulk_wait_read<0>();  // the source of the message before is free again
        __syncwarp();
        for (std::uint32_t i = lane; i < kMessageBytes / 4; i += 32) source[i] = g;
        fence_proxy_async_shared();
        __syncwarp();
        if (lane == 0) {
            bulk_store(to, source, kMessageBytes);
            bulk_commit();
        }
    }
}

template <Path kPath>
__device__ void raise_flag(LitmusFence fence, std::uint32_t* flag, std::uint32_t g) {
    // Makes lane 0 speak for the warp's stores as far as the warp itself goes.
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    if (kPath == kBulk && fence == LitmusFence::kWaitRead) bulk_wait_read<0>();
    if (kPath == kBulk && (fence == LitmusFence::kWaitAll || fence == LitmusFence::kFenceGpu ||
                           fence == LitmusFence::kReleaseSys)) {
        bulk_wait<0>();
    }
    if (fence == LitmusFence::kFenceGpu) fence_acq_rel_gpu();
    if (fence == LitmusFence::kReleaseSys) {
        st_release_sys_u32(flag, g);
    } else {
        st_relaxed_sys_u32(flag, g);
    }
}

__device__ void load_link(const LitmusParams& p) {
    const Deadline deadline(p.wait_budget_ns);
    const std::uint32_t cta = blockIdx.x - p.message_ctas;
    const std::uint64_t share = p.load_bytes / p.load_ctas / 65536 * 65536;
    std::uint64_t at = 0;
    while (
        !__syncthreads_or(ld_acquire_gpu_u32(p.load_stop) >= p.load_stop_at || deadline.passed())) {
        char* to = p.load + cta * share + at;
#pragma unroll 4
        for (std::uint32_t b = threadIdx.x * 16; b < 65536; b += kWarps * 32 * 16) {
            st_weak_v4(to + b, make_uint4(b, b, b, b));
        }
        at = (at + 65536) % share;
    }
}

template <Path kPath>
__global__ void __launch_bounds__(kWarps * 32)
    litmus_sender(const __grid_constant__ LitmusParams p) {
    __shared__ alignas(128) std::uint32_t source[kWarps][kMessageBytes / 4];
    if (blockIdx.x >= p.message_ctas) {
        load_link(p);
        return;
    }
    const auto fence = static_cast<LitmusFence>(p.fence);
    const bool later = fence >= LitmusFence::kNextKernel;
    const std::uint32_t warp = threadIdx.x / 32;
    const std::uint32_t channel = blockIdx.x * kWarps + warp;
    bool alive = true;
    for (std::uint32_t m = 0; m < p.messages_per_channel && alive; ++m) {
        const std::uint32_t g = p.first + m;
        if (g > p.slots) {
            if (threadIdx.x % 32 == 0) {
                alive = wait_acquire_sys_at_least(p.credits + channel * kFlagStride, g - p.slots,
                                                  Deadline(p.wait_budget_ns), p.report,
                                                  WaitPlace::kCredit, channel);
            }
            alive = __shfl_sync(~0u, alive, 0);
            if (!alive) break;
        }
        store_message<kPath>(p, slot_of(p, channel, g), g, source[warp]);
        if (!later) raise_flag<kPath>(fence, p.flags + channel * kFlagStride, g);
    }
    // Shared memory must outlive the reading of it, and that is all that is waited for here.
    if (kPath == kBulk && threadIdx.x % 32 == 0) bulk_wait_read<0>();
    __syncthreads();
    if (threadIdx.x == 0) red_release_gpu_add_u32(p.load_stop, 1);
    if (later) grid_launch_dependents();
}

/// Releases all messages of the kernel before it in the stream.
__global__ void litmus_release(const __grid_constant__ LitmusParams p) {
    if (static_cast<LitmusFence>(p.fence) == LitmusFence::kNextKernelPdl) {
        grid_wait_prerequisites();
    }
    const std::uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel < p.channels) {
        st_release_sys_u32(p.flags + channel * kFlagStride, p.first + p.messages_per_channel - 1);
    }
}

// ---- reader -------------------------------------------------------------------------------------

template <bool kSums>
__global__ void __launch_bounds__(kReaderWarps * 32)
    litmus_reader(const __grid_constant__ LitmusParams p) {
    const std::uint32_t channel = blockIdx.x * kReaderWarps + threadIdx.x / 32;
    if (channel >= p.channels) return;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t last = p.first + p.reader_messages - 1;
    std::uint32_t consumed = p.first - 1;
    unsigned long long trials = 0, stale_messages = 0, stale_words = 0;
    while (consumed < last) {
        std::uint32_t upto = 0;
        if (lane == 0) {
            if (wait_acquire_sys_at_least(p.flags + channel * kFlagStride, consumed + 1,
                                          Deadline(p.wait_budget_ns), p.reader_report,
                                          WaitPlace::kFlag, channel)) {
                upto = ld_acquire_sys_u32(p.flags + channel * kFlagStride);
            }
        }
        upto = __shfl_sync(~0u, upto, 0);
        if (upto == 0) break;
        for (std::uint32_t g = consumed + 1; g <= upto; ++g) {
            const std::uint32_t want =
                kSums ? __float_as_uint(static_cast<float>(uses(g, p.slots))) : g;
            const char* from = slot_of(p, channel, g);
            std::uint32_t wrong = 0;
#pragma unroll
            for (std::uint32_t i = 0; i < kMessageBytes / 512; ++i) {
                const uint4 got = ld_weak_v4(from + i * 512 + lane * 16);
                wrong += (got.x != want) + (got.y != want) + (got.z != want) + (got.w != want);
            }
            wrong = __reduce_add_sync(~0u, wrong);
            ++trials;
            stale_words += wrong;
            stale_messages += wrong != 0;
        }
        consumed = upto;
        __syncwarp();
        if (lane == 0) st_release_sys_u32(p.credits + channel * kFlagStride, consumed);
    }
    if (lane == 0) {
        atomicAdd(p.trials, trials);
        atomicAdd(p.stale_messages, stale_messages);
        atomicAdd(p.stale_words, stale_words);
    }
}

constexpr unsigned kReleaseThreads = 128;

/// Loads it, with the one split of shared memory that lets sender and reader share an SM in
/// loopback.
cudaError_t load_kernel(const void* kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

}  // namespace

cudaError_t prepare_litmus_kernels() {
    for (const void* kernel : {reinterpret_cast<const void*>(litmus_sender<kSt16>),
                               reinterpret_cast<const void*>(litmus_sender<kBulk>),
                               reinterpret_cast<const void*>(litmus_sender<kRed>),
                               reinterpret_cast<const void*>(litmus_reader<false>),
                               reinterpret_cast<const void*>(litmus_reader<true>),
                               reinterpret_cast<const void*>(litmus_release)}) {
        if (const auto error = load_kernel(kernel); error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t launch_litmus_reader(int path, const LitmusParams& params, cudaStream_t stream) {
    auto kernel = path == kRed ? litmus_reader<true> : litmus_reader<false>;
    kernel<<<(params.channels + kReaderWarps - 1) / kReaderWarps, kReaderWarps * 32, 0, stream>>>(
        params);
    return cudaGetLastError();
}

cudaError_t launch_litmus_sender(int path, const LitmusParams& params, cudaStream_t stream) {
    auto kernel = path == kRed    ? litmus_sender<kRed>
                  : path == kBulk ? litmus_sender<kBulk>
                                  : litmus_sender<kSt16>;
    kernel<<<params.message_ctas + params.load_ctas, kWarps * 32, 0, stream>>>(params);
    return cudaGetLastError();
}

cudaError_t launch_litmus_release(const LitmusParams& params, bool programmatic,
                                  cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3((params.channels + kReleaseThreads - 1) / kReleaseThreads);
    config.blockDim = dim3(kReleaseThreads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = programmatic ? 1 : 0;
    return cudaLaunchKernelEx(&config, litmus_release, params);
}

int litmus_channels_per_cta() {
    return static_cast<int>(kWarps);
}

}  // namespace xstage::probe
