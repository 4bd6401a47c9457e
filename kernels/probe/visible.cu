// When may the peer read? The sender's CTAs store, fence, and count in; the last one raises a flag
// at the reader. The reader's first CTA answers at once, then all its CTAs read and check every
// word, and only then may the next round begin. The whole is timed on the sender's clock, as a
// round trip: two GPUs' clocks are never subtracted.
//
// What makes a reading formally right: each storing thread's stores are ordered before its CTA's
// system-scope fence by the CTA barrier (all_fence: by its own fence), the fences before the flag's
// system-scope release by the counter, and the reader acquires the flag at system scope.

#include <xstage/device/store_path.cuh>
#include <xstage/device/sync.cuh>

#include "launch.hpp"

namespace xstage::probe {
namespace {

using namespace xstage::device;

constexpr std::uint32_t kStartLead = 3000;
constexpr int kReaderThreads = 512;

__device__ std::uint64_t burst_offset(const VisibleParams& p, std::uint32_t round,
                                      std::uint32_t producer) {
    const std::uint32_t sequence = p.rewrite ? 0 : round * p.producers;
    return std::uint64_t{(p.first_slot + sequence + producer) % p.slots} * p.bytes;
}

template <class Path>
__global__ void __launch_bounds__(kMaxWorkers * 32, 1)
    visible_sender(const __grid_constant__ VisibleParams p) {
    __shared__ alignas(128) std::uint32_t source[kBulkChunk / 4];
    __shared__ std::uint64_t start;
    __shared__ std::uint32_t issue_max;
    const StartLines lines{p.lines.count, p.lines.start_ns, p.lines.arrived};

    for (std::uint32_t round = 0; round < p.rounds; ++round) {
        for (std::uint32_t i = threadIdx.x; i < kBulkChunk / 4; i += blockDim.x) {
            source[i] = burst_word(p.seed + round, i);
        }
        fence_proxy_async_shared();
        if (threadIdx.x == 0) issue_max = 0;
        __syncthreads();
        const std::uint64_t window_cycles = clock_cycles();
        const std::uint64_t window_ns = global_ns();
        spin_until_cycles(window_cycles + (round == 0 ? p.warm_cycles_first : p.warm_cycles));
        if (threadIdx.x == 0) {
            bool ready = true;
            if (blockIdx.x == 0) {
                ready = wait_acquire_sys_at_least(p.checked, round, Deadline(p.wait_budget_ns),
                                                  p.report, WaitPlace::kChecked, 1);
            }
            start = ready ? meet_at_start_line(lines, round, kStartLead, p.wait_budget_ns, p.report)
                          : 0;
        }
        __syncthreads();
        if (start == 0) return;
        spin_until_ns(start);

        const std::uint64_t begin = clock_cycles();
        const std::uint64_t offset = burst_offset(p, round, blockIdx.x);
        const BurstArgs args{.destination = p.destination + offset,
                             .bytes = p.bytes,
                             .warp = threadIdx.x / 32,
                             .warps = p.warps,
                             .lane = threadIdx.x % 32,
                             .seed = p.seed + round,
                             .source = reinterpret_cast<const char*>(source),
                             .map = nullptr,
                             .offset = offset};
        if constexpr (Path::kBulk) {
            if (threadIdx.x == 0 && p.bytes != 0) {
                Path::burst(args);
                bulk_wait_read<0>();
            }
        } else {
            Path::burst(args);
        }
        const std::uint32_t issued = static_cast<std::uint32_t>(clock_cycles() - begin);
        if constexpr (Path::kBulk) {
            if (threadIdx.x == 0) bulk_wait<0>();
        }
        if (p.all_fence) fence_acq_rel_sys();
        if (threadIdx.x % 32 == 0) atomicMax(&issue_max, issued);
        __syncthreads();
        if (threadIdx.x == 0) {
            if (!p.all_fence) fence_acq_rel_sys();
            const std::uint32_t fenced = static_cast<std::uint32_t>(clock_cycles() - begin);
            if (atom_acq_rel_gpu_add_u32(p.arrivals + round, 1) + 1 == gridDim.x) {
                st_release_sys_u32(p.flag, round + 1);
                wait_acquire_sys_at_least(p.echo, round + 1, Deadline(p.wait_budget_ns), p.report,
                                          WaitPlace::kEcho, 1);
                p.echo_out[round * 2] = clock_cycles() - begin;
                p.echo_out[round * 2 + 1] = global_ns() - start;
            }
            CtaRound& out = p.rounds_out[round * gridDim.x + blockIdx.x];
            out.total_cycles[0] = issue_max;
            out.fence_cycles = fenced;
            out.sm = sm_id();
            out.stored = 1;
            out.start_ns = start;
            out.end_ns = global_ns();
            out.window_cycles = clock_cycles() - window_cycles;
            out.window_ns = global_ns() - window_ns;
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(kReaderThreads)
    visible_reader(const __grid_constant__ VisibleParams p) {
    __shared__ bool seen;
    for (std::uint32_t round = 0; round < p.rounds; ++round) {
        if (threadIdx.x == 0) {
            seen = wait_acquire_sys_at_least(p.flag, round + 1, Deadline(p.wait_budget_ns),
                                             p.reader_report, WaitPlace::kFlag, 0);
            if (seen && blockIdx.x == 0) st_release_sys_u32(p.echo, round + 1);
        }
        __syncthreads();
        if (!seen) return;
        std::uint32_t wrong = 0;
        const std::uint32_t vectors = p.bytes / 16;
        for (std::uint32_t producer = 0; producer < p.producers; ++producer) {
            const char* from = p.destination + burst_offset(p, round, producer);
            for (std::uint32_t v = blockIdx.x * blockDim.x + threadIdx.x; v < vectors;
                 v += gridDim.x * blockDim.x) {
                const uint4 got = ld_weak_v4(from + std::size_t{v} * 16);
                const std::uint32_t w = burst_word(p.seed + round, v * 4);
                wrong += (got.x != w) + (got.y != w + 1) + (got.z != w + 2) + (got.w != w + 3);
            }
        }
        if (wrong != 0) atomicAdd(p.stale_out + round, wrong);
        __syncthreads();
        if (threadIdx.x == 0 &&
            atom_acq_rel_gpu_add_u32(p.reader_done + round, 1) + 1 == gridDim.x) {
            st_release_sys_u32(p.checked, round + 1);
        }
        __syncthreads();
    }
}

}  // namespace

cudaError_t prepare_visible_kernels(int exclusive_shared_bytes) {
    for (const void* kernel : {reinterpret_cast<const void*>(visible_sender<St16>),
                               reinterpret_cast<const void*>(visible_sender<Bulk>)}) {
        const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                exclusive_shared_bytes);
        if (error != cudaSuccess) return error;
    }
    // On one GPU both kernels share the SMs. An SM cannot change its split of shared memory while a
    // CTA is on it, so the reader must not make it one that the sender does not fit.
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(visible_reader),
                                cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

cudaError_t launch_visible_reader(const VisibleParams& params, int ctas, cudaStream_t stream) {
    visible_reader<<<ctas, kReaderThreads, 0, stream>>>(params);
    return cudaGetLastError();
}

cudaError_t launch_visible_sender(bool bulk, const VisibleParams& params,
                                  int exclusive_shared_bytes, cudaStream_t stream) {
    auto kernel = bulk ? visible_sender<Bulk> : visible_sender<St16>;
    kernel<<<params.producers, params.warps * 32, exclusive_shared_bytes, stream>>>(params);
    return cudaGetLastError();
}

}  // namespace xstage::probe
