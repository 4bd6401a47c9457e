// The protocol's four programs as kernels: one warp per rank, lane p for peer p. The ranks of a
// device wait for each other, so their warps form one block: it is resident as a whole or not at
// all, which a grid would need a cooperative launch for.

#include "signals.cuh"

#include <type_traits>

#include "xstage/device/fabric.cuh"

namespace xstage::fabric::kernels {
namespace {

constexpr int kMostThreads = 32 * kMaxRanks;

template <ProgramId kProgram>
__device__ bool run(device::FabricPort& port) {
    if (port.broken()) return false;
    if constexpr (kProgram == ProgramId::kBegin) {
        return protocol::run(protocol::begin_program(), port);
    } else if constexpr (kProgram == ProgramId::kPublish) {
        return protocol::run(protocol::publish_program(), port);
    } else if constexpr (kProgram == ProgramId::kAcquire) {
        return protocol::run(protocol::acquire_program(), port);
    } else if constexpr (kProgram == ProgramId::kExchange) {
        return protocol::run(protocol::publish_program(), port) &&
               protocol::run(protocol::acquire_program(), port);
    } else {
        return protocol::run(protocol::barrier_program(), port);
    }
}

/// One warp is enough: only a broken group comes here. Chunks are whole pages, so 16 bytes divide
/// them.
__device__ void spoil(std::byte* data, std::size_t bytes) {
    const uint4 nan = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (std::size_t i = threadIdx.x % 32; i < bytes / sizeof(uint4); i += 32)
        reinterpret_cast<uint4*>(data)[i] = nan;
}

template <ProgramId kProgram>
__global__ void __launch_bounds__(kMostThreads)
    run_program(const __grid_constant__ device::FabricGroup group,
                const __grid_constant__ CallShape call,
                const __grid_constant__ PoisonTable poison) {
    const int local = static_cast<int>(threadIdx.x) / 32;
    device::FabricPort port(group, local, call);
    const bool ok = run<kProgram>(port);
    if constexpr (kProgram == ProgramId::kAcquire || kProgram == ProgramId::kExchange) {
        if (!ok) spoil(poison.data[local], poison.bytes[local]);
    }
}

/// publish of `call`, begin of `next` and acquire of `call`: what stands between two kernels of
/// which the second reads what the first one's peers stored, and stores to peers itself.
__global__ void __launch_bounds__(kMostThreads)
    run_hand_over(const __grid_constant__ device::FabricGroup group,
                  const __grid_constant__ CallShape call, const __grid_constant__ CallShape next,
                  const __grid_constant__ PoisonTable poison) {
    const int local = static_cast<int>(threadIdx.x) / 32;
    const auto step = [&](const CallShape& shape, auto program) {
        // A port reads the counters once, and the step before has written them.
        __syncwarp();
        device::FabricPort port(group, local, shape);
        return run<decltype(program)::value>(port);
    };
    using Publish = std::integral_constant<ProgramId, ProgramId::kPublish>;
    using Begin = std::integral_constant<ProgramId, ProgramId::kBegin>;
    using Acquire = std::integral_constant<ProgramId, ProgramId::kAcquire>;
    const bool ok = step(call, Publish{}) && step(next, Begin{}) && step(call, Acquire{});
    if (!ok) spoil(poison.data[local], poison.bytes[local]);
}

// The barrier has no output, and its launch is on the critical path: fewer parameters.
__global__ void __launch_bounds__(kMostThreads)
    run_barrier(const __grid_constant__ device::FabricGroup group,
                const __grid_constant__ CallShape call) {
    device::FabricPort port(group, static_cast<int>(threadIdx.x) / 32, call);
    run<ProgramId::kBarrier>(port);
}

__global__ void __launch_bounds__(kMostThreads)
    store_self_test(const __grid_constant__ device::FabricGroup group) {
    const int rank = group.ranks[threadIdx.x / 32];
    const int peer = static_cast<int>(threadIdx.x) % 32;
    if (peer < group.world && peer != rank)
        device::st_release_sys_u64(&group.block[peer]->from[rank].self_test[0],
                                   self_test_pattern(rank, peer));
}

template <class... Parameters, class... Arguments>
cudaError_t launch_ranks(void (*kernel)(Parameters...), int ranks, cudaStream_t stream,
                         const Arguments&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1);
    config.blockDim = dim3(32 * static_cast<unsigned>(ranks));
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t launch(ProgramId program, const device::FabricGroup& group, const CallShape& call,
                   const CallShape& next, const PoisonTable& poison, cudaStream_t stream) {
    switch (program) {
        case ProgramId::kBegin:
            return launch_ranks(run_program<ProgramId::kBegin>, group.local, stream, group, call,
                                poison);
        case ProgramId::kPublish:
            return launch_ranks(run_program<ProgramId::kPublish>, group.local, stream, group, call,
                                poison);
        case ProgramId::kAcquire:
            return launch_ranks(run_program<ProgramId::kAcquire>, group.local, stream, group, call,
                                poison);
        case ProgramId::kExchange:
            return launch_ranks(run_program<ProgramId::kExchange>, group.local, stream, group, call,
                                poison);
        case ProgramId::kHandOver:
            return launch_ranks(run_hand_over, group.local, stream, group, call, next, poison);
        case ProgramId::kBarrier:
            return launch_ranks(run_barrier, group.local, stream, group, call);
    }
    return cudaErrorInvalidValue;
}

cudaError_t launch_self_test(const device::FabricGroup& group, cudaStream_t stream) {
    return launch_ranks(store_self_test, group.local, stream, group);
}

cudaError_t preload() {
    const void* kernels[] = {reinterpret_cast<const void*>(run_program<ProgramId::kBegin>),
                             reinterpret_cast<const void*>(run_program<ProgramId::kPublish>),
                             reinterpret_cast<const void*>(run_program<ProgramId::kAcquire>),
                             reinterpret_cast<const void*>(run_program<ProgramId::kExchange>),
                             reinterpret_cast<const void*>(run_hand_over),
                             reinterpret_cast<const void*>(run_barrier),
                             reinterpret_cast<const void*>(store_self_test)};
    cudaError_t error = cudaSuccess;
    for (const void* kernel : kernels) {
        cudaFuncAttributes attributes{};
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
    }
    return error;
}

}  // namespace xstage::fabric::kernels
