// The store loop. One CTA per SM; each round all CTAs start on one tick of the global timer and
// store `bursts` bursts with gaps of computation between. Timed on the SM's own clock: issue of
// each burst by each worker, the whole, and a system-scope fence after it (the drain). A round's
// account is written after its fence, so that it never travels with the stores that it times.

#include <xstage/device/store_path.cuh>
#include <xstage/device/sync.cuh>

#include "launch.hpp"
#include "params.hpp"

namespace xstage::probe {
namespace {

using namespace xstage::device;

constexpr std::uint32_t kStartLead = 3000;  // ns from the last arrival to the start
constexpr std::uint32_t kStoreBarrier = 1;  // named barrier of the storing warps

constexpr std::uint32_t kBesideBarrier = 2;  // of the warps beside
constexpr std::uint32_t kQuietShift = 8;     // 32 intervals of 256 cycles fit a round's warm-up

// ---- what runs beside the stores ----------------------------------------------------------------

struct NoWork {
    static constexpr int kWarps = 0;
    __device__ explicit NoWork(const StoreParams&) {}
};

/// Four independent chains of tensor-core products per warp.
struct MmaWork {
    static constexpr int kWarps = kBesideWarps;
    float d[4][4] = {};
    std::uint32_t a[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    std::uint32_t b[2] = {0x3f803f80u, 0x3f803f80u};
    __device__ explicit MmaWork(const StoreParams&) {}
    __device__ void step() {
#pragma unroll
        for (int i = 0; i < 4; ++i) mma_m16n8k16_bf16(d[i], a, b);
    }
    __device__ float result() const {
        return d[0][0] + d[1][1] + d[2][2] + d[3][3];
    }
};

/// Streams local memory, four 16-byte loads in flight per lane.
struct MemoryWork {
    static constexpr int kWarps = kBesideWarps;
    const std::uint8_t* base;
    std::uint64_t at;
    std::uint32_t sum = 0;
    __device__ explicit MemoryWork(const StoreParams& p) : base(p.beside_memory) {
        at = (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 64 % kBesideBytes;
    }
    __device__ void step() {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = ld_no_l1_v4(base + at + i * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += v[i].x ^ v[i].w;
        at = (at + std::uint64_t{gridDim.x} * blockDim.x * 64) & (kBesideBytes - 1);
    }
    __device__ float result() const {
        return static_cast<float>(sum);
    }
};

/// Reads shared memory as an ldmatrix main loop would: four 16-byte loads a lane in flight.
struct SharedWork {
    static constexpr int kWarps = kBesideWarps;
    const char* base = nullptr;  ///< kBulkChunk bytes
    std::uint32_t sum = 0;
    __device__ explicit SharedWork(const StoreParams&) {}
    __device__ void step() {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = ld_shared_v4(base + i * 512 + threadIdx.x % 32 * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += v[i].x ^ v[i].w;
    }
    __device__ float result() const {
        return static_cast<float>(sum);
    }
};

/// What a warp of the work beside had done by one moment.
struct Progress {
    std::uint32_t steps;
    std::uint32_t cycles;
};

/// Progress in 32 intervals of 2^shift cycles from `begin`: lane i of the warp keeps its last step
/// in interval i, nothing where none ended there. The warps beside look at nothing but their clock:
/// a poll of memory would queue behind stalled stores and be taken for a stall of the work itself.
/// Each step costs the same whatever the interval, or two intervals could not be compared.
template <class Work>
__device__ Progress work_in_intervals(Work& work, std::uint64_t begin, std::uint32_t shift) {
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t steps = 0, interval = 0;
    Progress mine{};
    while (interval < 32) {
        work.step();
        ++steps;
        const auto now = static_cast<std::uint32_t>(clock_cycles() - begin);
        interval = now >> shift;
        if (lane == interval) mine = {steps, now};
    }
    return mine;
}

/// From the first step at or after interval `from` to the last one up to interval `to`. At least
/// two different steps, so that a rate can be told, as long as there are two.
__device__ Progress progress_between(const Progress (&kept)[32], std::uint32_t from,
                                     std::uint32_t to) {
    while (from < 30 && kept[from].steps == 0) ++from;
    while (to < 31 && to <= from) ++to;
    while (to < 31 && kept[to].steps == 0) ++to;
    while (to > from && kept[to].steps == 0) --to;
    return {kept[to].steps - kept[from].steps, kept[to].cycles - kept[from].cycles};
}

// ---- kernel -------------------------------------------------------------------------------------

struct Shared {
    alignas(128) std::uint32_t source[kBulkChunk / 4];
    std::uint64_t start_ns;
    Progress quiet[32];    // of one warp beside, before the stores
    Progress storing[32];  // of the same warp from their start
    std::uint32_t issue[kMaxBursts][kMaxWorkers];
    std::uint32_t posted[kMaxBursts];
    std::uint32_t total[kMaxWorkers];
};

__device__ bool stores_here(const StoreParams& p) {
    const std::uint32_t sm = sm_id() % kMaxSms;
    return p.sm_mask[sm / 64] >> (sm % 64) & 1;
}

template <class Path>
__device__ BurstArgs burst_args(const StoreParams& p, const TensorMaps& maps, const Shared& shared,
                                std::uint32_t round, std::uint32_t burst) {
    const std::uint32_t sequence = p.rewrite ? 0 : (round * p.bursts + burst) * gridDim.x;
    const std::uint32_t slot = (p.first_slot + sequence + blockIdx.x) % p.slots;
    const std::uint32_t to = p.destinations == 1 ? 0 : (blockIdx.x + burst) % p.destinations;
    const std::uint64_t offset = std::uint64_t{slot} * p.span;
    return {.destination = p.destination[to] + offset,
            .bytes = p.bytes,
            .warp = threadIdx.x / 32,
            .warps = p.warps,
            .lane = threadIdx.x % 32,
            .seed = p.seed + round,
            .source = reinterpret_cast<const char*>(shared.source),
            .map = &maps.map[to],
            .offset = offset};
}

template <class Path>
__device__ void timed_bursts(const StoreParams& p, const TensorMaps& maps, Shared& shared,
                             std::uint32_t round) {
    const std::uint32_t threads = p.warps * 32;
    const std::uint32_t warp = threadIdx.x / 32;
    const bool leader = threadIdx.x % 32 == 0;
    const StartLines lines{p.lines.count, p.lines.start_ns, p.lines.arrived};
    std::uint64_t begin = 0;
    for (std::uint32_t burst = 0; burst < p.bursts; ++burst) {
        const BurstArgs args = burst_args<Path>(p, maps, shared, round, burst);
        const std::uint64_t from = clock_cycles();
        if (burst == 0) begin = from;
        if constexpr (Path::kBulk) {
            if (threadIdx.x == 0) {
                Path::burst(args);
                shared.posted[burst] = static_cast<std::uint32_t>(clock_cycles() - from);
                bulk_wait_read<0>();
            }
        } else {
            Path::burst(args);
        }
        const std::uint64_t to = clock_cycles();
        if (leader) {
            shared.issue[burst][warp] = static_cast<std::uint32_t>(to - from);
            shared.total[warp] = static_cast<std::uint32_t>(to - begin);
        }
        // The producer is the CTA: its gap is counted from its slowest warp.
        bar_sync(kStoreBarrier, threads);
        if (burst + 1 == p.bursts) break;
        if (p.gap_all) {
            if (threadIdx.x == 0) {
                const std::uint32_t line = round * p.bursts + burst + 1;
                shared.start_ns =
                    meet_at_start_line(lines, line, p.gap_ns, p.wait_budget_ns, p.report);
            }
            bar_sync(kStoreBarrier, threads);
            spin_until_ns(shared.start_ns);
        } else if (p.gap_cycles != 0) {
            spin_until_cycles(clock_cycles() + p.gap_cycles);
        }
    }
}

template <class Path, class Work>
__global__ void __launch_bounds__((kMaxWorkers + kBesideWarps) * 32, 1)
    store_kernel(const __grid_constant__ StoreParams p, const __grid_constant__ TensorMaps maps) {
    // Dynamic shared memory is only there to keep a second CTA off the SM.
    __shared__ Shared shared;
    const std::uint32_t threads = p.warps * 32;
    const bool storing_warp = threadIdx.x < threads;
    const bool active = stores_here(p);
    const StartLines lines{p.lines.count, p.lines.start_ns, p.lines.arrived};
    [[maybe_unused]] Work work(p);
    if constexpr (std::is_same_v<Work, SharedWork>) {
        work.base = reinterpret_cast<const char*>(shared.source);
    }

    for (std::uint32_t round = 0; round < p.rounds; ++round) {
        for (std::uint32_t i = threadIdx.x; i < kBulkChunk / 4; i += blockDim.x) {
            shared.source[i] = burst_word(p.seed + round, i);
        }
        fence_proxy_async_shared();
        __syncthreads();
        const std::uint64_t window_cycles = clock_cycles();
        const std::uint64_t window_ns = global_ns();

        if (storing_warp) {
            const std::uint64_t warm =
                window_cycles + (round == 0 ? p.warm_cycles_first : p.warm_cycles);
            if constexpr (Work::kWarps == 0) {
                spin_until_cycles(warm);
            } else {
                // The work beside keeps the clock up; spinning would take its issue slots, and its
                // pace before the stores is what it is compared with.
                while (clock_cycles() < warm) nanosleep(200);
            }
            if (threadIdx.x == 0) {
                shared.start_ns = meet_at_start_line(lines, round * p.bursts, kStartLead,
                                                     p.wait_budget_ns, p.report);
            }
        } else if constexpr (Work::kWarps > 0) {
            const Progress mine = work_in_intervals(work, clock_cycles(), kQuietShift);
            if (threadIdx.x / 32 == p.warps) shared.quiet[threadIdx.x % 32] = mine;
        }
        __syncthreads();
        const std::uint64_t start_ns = shared.start_ns;
        spin_until_ns(start_ns);

        if (storing_warp) {
            const std::uint64_t begin = clock_cycles();
            if (active) {
                timed_bursts<Path>(p, maps, shared, round);
            }
            if (threadIdx.x == 0) {
                if constexpr (Path::kBulk) bulk_wait<0>();
                fence_acq_rel_sys();
                const std::uint64_t end = clock_cycles();
                CtaRound& out = p.rounds_out[round * gridDim.x + blockIdx.x];
                out.start_ns = start_ns;
                out.end_ns = global_ns();
                out.fence_cycles = static_cast<std::uint32_t>(end - begin);
                out.sm = sm_id();
                out.stored = active;
            }
        } else if constexpr (Work::kWarps > 0) {
            const Progress mine = work_in_intervals(work, clock_cycles(), p.beside_shift);
            if (threadIdx.x / 32 == p.warps) {
                shared.storing[threadIdx.x % 32] = mine;
            }
            // The storing warps meet once more per round. Without a barrier here racecheck, which
            // counts them, takes one round of these warps for another and reports a race.
            bar_sync(kBesideBarrier, kBesideWarps * 32);
        }
        __syncthreads();

        if (threadIdx.x == 0) {
            CtaRound& out = p.rounds_out[round * gridDim.x + blockIdx.x];
            out.window_cycles = clock_cycles() - window_cycles;
            out.window_ns = global_ns() - window_ns;
            if constexpr (Work::kWarps > 0) {
                std::uint32_t total = 0;
                for (std::uint32_t w = 0; w < p.warps; ++w) total = max(total, shared.total[w]);
                // Without the first quarter of the quiet time, in which instructions are fetched.
                const Progress quiet = progress_between(shared.quiet, 8, 31);
                const Progress storing =
                    progress_between(shared.storing, 0, min(total >> p.beside_shift, 31u));
                out.quiet_steps = quiet.steps;
                out.quiet_cycles = quiet.cycles;
                out.storing_steps = storing.steps;
                out.storing_cycles = storing.cycles;
            }
        }
        if (storing_warp && active) {
            const std::uint32_t workers = Path::kBulk ? 1 : p.warps;
            for (std::uint32_t i = threadIdx.x; i < p.bursts * workers; i += threads) {
                const std::uint32_t burst = i / workers, worker = i % workers;
                const std::size_t at =
                    ((std::size_t{round} * p.bursts + burst) * gridDim.x + blockIdx.x) * workers +
                    worker;
                p.issue_out[at] = shared.issue[burst][worker];
                if constexpr (Path::kBulk) p.posted_out[at] = shared.posted[burst];
            }
            if (threadIdx.x < workers) {
                p.rounds_out[round * gridDim.x + blockIdx.x].total_cycles[threadIdx.x] =
                    shared.total[threadIdx.x];
            }
        }
        __syncthreads();
        // A missed start line left start_ns zero: every CTA sees its own, and the host the report.
        if (shared.start_ns == 0) return;
    }
    if constexpr (Work::kWarps > 0) {
        if (work.result() == -1.0f) p.report->waiter = 0;  // so that no step is optimised away
    }
}

// ---- launch -------------------------------------------------------------------------------------

using Kernel = void (*)(StoreParams, TensorMaps);

struct Instance {
    const char* path;
    int beside;
    Kernel kernel;
    std::uint32_t span;
    bool bulk;
};

template <class Path, class Work>
constexpr Instance instance(const char* path, int beside) {
    return {path, beside, store_kernel<Path, Work>, Path::kSpan, Path::kBulk};
}

const Instance kInstances[] = {
    instance<St16, NoWork>("st16", 0),
    instance<St16, MmaWork>("st16", 1),
    instance<St16, MemoryWork>("st16", 2),
    instance<Bulk, NoWork>("bulk", 0),
    instance<Bulk, MmaWork>("bulk", 1),
    instance<Bulk, MemoryWork>("bulk", 2),
    instance<St16, SharedWork>("st16", 3),
    instance<Bulk, SharedWork>("bulk", 3),
    instance<St4, NoWork>("st4", 0),
    instance<St4Sector, NoWork>("st4_sector", 0),
    instance<Tensor, NoWork>("tensor", 0),
    instance<RedF32, NoWork>("red_f32", 0),
    instance<RedF32x4, NoWork>("red_f32x4", 0),
    instance<RedBf16x2, NoWork>("red_bf16x2", 0),
    instance<BulkRedF32, NoWork>("bulk_red_f32", 0),
};

const Instance* find(const char* path, int beside) {
    for (const Instance& i : kInstances) {
        if (std::string_view(i.path) == path && i.beside == beside) return &i;
    }
    return nullptr;
}

}  // namespace

StoreShape store_shape(const char* path, int beside) {
    const Instance* i = find(path, beside);
    return i == nullptr ? StoreShape{} : StoreShape{true, i->bulk, i->span};
}

cudaError_t prepare_store_kernels(int exclusive_shared_bytes) {
    for (const Instance& i : kInstances) {
        const auto error = cudaFuncSetAttribute(reinterpret_cast<const void*>(i.kernel),
                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                exclusive_shared_bytes);
        if (error != cudaSuccess) return error;
        cudaFuncAttributes attributes;
        if (const auto e =
                cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(i.kernel));
            e != cudaSuccess) {
            return e;
        }
    }
    return cudaSuccess;
}

cudaError_t launch_store(const char* path, int beside, const StoreParams& params,
                         const TensorMaps& maps, int ctas, int exclusive_shared_bytes,
                         cudaStream_t stream) {
    const Instance* i = find(path, beside);
    if (i == nullptr) return cudaErrorInvalidValue;
    const unsigned threads = params.warps * 32 + (beside != 0 ? kBesideWarps * 32 : 0);
    i->kernel<<<ctas, threads, exclusive_shared_bytes, stream>>>(params, maps);
    return cudaGetLastError();
}

}  // namespace xstage::probe
