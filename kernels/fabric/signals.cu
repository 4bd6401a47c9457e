// The protocol's programs where every peer is mapped.

#include "signals.cuh"

#include "programs.cuh"

namespace xstage::fabric::kernels {
namespace {

using device::MappedPeers;

template <ProgramId kProgram>
__global__ void __launch_bounds__(kMostThreads)
    run_program(const __grid_constant__ device::FabricGroup group,
                const __grid_constant__ CallShape call,
                const __grid_constant__ PoisonTable poison) {
    program<kProgram, MappedPeers>(group, call, poison);
}

__global__ void __launch_bounds__(kMostThreads)
    run_hand_over(const __grid_constant__ device::FabricGroup group,
                  const __grid_constant__ CallShape call, const __grid_constant__ CallShape next,
                  const __grid_constant__ PoisonTable poison) {
    hand_over<MappedPeers>(group, call, next, poison);
}

// The barrier has no output, and its launch is on the critical path: fewer parameters.
__global__ void __launch_bounds__(kMostThreads)
    run_barrier(const __grid_constant__ device::FabricGroup group,
                const __grid_constant__ CallShape call) {
    barrier<MappedPeers>(group, call);
}

__global__ void __launch_bounds__(kMostThreads)
    store_self_test(const __grid_constant__ device::FabricGroup group) {
    self_test<MappedPeers>(group);
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
