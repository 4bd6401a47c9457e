// The protocol's four programs as kernels: one warp per rank, lane p for peer p.

#include "signals.cuh"

#include "xstage/device/fabric.cuh"

namespace xstage::fabric::kernels {
namespace {

constexpr int kThreads = 32;

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
    for (std::size_t i = threadIdx.x; i < bytes / sizeof(uint4); i += kThreads)
        reinterpret_cast<uint4*>(data)[i] = nan;
}

template <ProgramId kProgram>
__global__ void __launch_bounds__(kThreads)
    run_program(const __grid_constant__ device::FabricGroup group,
                const __grid_constant__ CallShape call,
                const __grid_constant__ PoisonTable poison) {
    const int local = static_cast<int>(blockIdx.x);
    device::FabricPort port(group, local, call);
    const bool ok = run<kProgram>(port);
    if constexpr (kProgram == ProgramId::kAcquire || kProgram == ProgramId::kExchange) {
        if (!ok) spoil(poison.data[local], poison.bytes[local]);
    }
}

// The barrier has no output, and its launch is on the critical path: fewer parameters.
__global__ void __launch_bounds__(kThreads)
    run_barrier(const __grid_constant__ device::FabricGroup group,
                const __grid_constant__ CallShape call) {
    device::FabricPort port(group, static_cast<int>(blockIdx.x), call);
    run<ProgramId::kBarrier>(port);
}

__global__ void __launch_bounds__(kThreads)
    store_self_test(const __grid_constant__ device::FabricGroup group) {
    const int rank = group.ranks[blockIdx.x];
    const int peer = static_cast<int>(threadIdx.x);
    if (peer < group.world && peer != rank)
        device::st_release_sys_u64(&group.block[peer]->from[rank].self_test[0],
                                   self_test_pattern(rank, peer));
}

template <class... Parameters, class... Arguments>
cudaError_t launch_ranks(void (*kernel)(Parameters...), int ranks, cudaStream_t stream,
                         const Arguments&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ranks));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.attrs = &cooperative;
    config.numAttrs = ranks > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t launch(ProgramId program, const device::FabricGroup& group, const CallShape& call,
                   const PoisonTable& poison, cudaStream_t stream) {
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
        case ProgramId::kBarrier:
            return launch_ranks(run_barrier, group.local, stream, group, call);
    }
    return cudaErrorInvalidValue;
}

cudaError_t launch_self_test(const device::FabricGroup& group, cudaStream_t stream) {
    return launch_ranks(store_self_test, group.local, stream, group);
}

cudaError_t preload(int ranks) {
    const void* kernels[] = {reinterpret_cast<const void*>(run_program<ProgramId::kBegin>),
                             reinterpret_cast<const void*>(run_program<ProgramId::kPublish>),
                             reinterpret_cast<const void*>(run_program<ProgramId::kAcquire>),
                             reinterpret_cast<const void*>(run_program<ProgramId::kExchange>),
                             reinterpret_cast<const void*>(run_barrier),
                             reinterpret_cast<const void*>(store_self_test)};
    int device = 0;
    int processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    for (const void* kernel : kernels) {
        cudaFuncAttributes attributes{};
        int per_processor = 0;
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
        if (error == cudaSuccess)
            error =
                cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, kThreads, 0);
        if (error == cudaSuccess && per_processor * processors < ranks)
            error = cudaErrorCooperativeLaunchTooLarge;
    }
    return error;
}

}  // namespace xstage::fabric::kernels
