#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "../kernels/fabric/signals.cuh"
#include "fabric/put_table.hpp"

namespace xstage::fabric {

/// The kernels of one group: those that store alone, or those that put as well.
class FabricKernels {
  public:
    using ProgramId = kernels::ProgramId;
    using PoisonTable = kernels::PoisonTable;

    virtual ~FabricKernels() = default;

    /// Loads every kernel now: a lazy load between two launches that wait for each other would hang
    /// them.
    virtual cudaError_t preload() { return kernels::preload(); }
    virtual cudaError_t launch(ProgramId program, const device::FabricGroup& group,
                               const CallShape& call, const CallShape& next,
                               const PoisonTable& poison, cudaStream_t stream) {
        return kernels::launch(program, group, call, next, poison, stream);
    }
    virtual cudaError_t self_test(const device::FabricGroup& group, cudaStream_t stream) {
        return kernels::launch_self_test(group, stream);
    }

    // To ranks of other nodes, of which the kernels that store alone have none.
    virtual cudaError_t send(const device::FabricGroup&, const CallShape&, const PutTable&,
                             cudaStream_t) {
        return cudaErrorNotSupported;
    }
    virtual cudaError_t receive(const device::FabricGroup&, const CallShape&, const PutTable&,
                                cudaStream_t) {
        return cudaErrorNotSupported;
    }
    virtual cudaError_t put(int, std::byte*, const std::byte*, std::size_t, cudaStream_t) {
        return cudaErrorNotSupported;
    }
};

}  // namespace xstage::fabric
