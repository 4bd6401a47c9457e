#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "xstage/device/fabric_group.hpp"

namespace xstage::fabric::kernels {

enum class ProgramId { kBegin, kPublish, kAcquire, kExchange, kHandOver, kBarrier };

/// Where each rank's output is, to be spoilt when the group is broken; by warp.
struct PoisonTable {
    std::byte* data[kMaxRanks] = {};
    std::size_t bytes[kMaxRanks] = {};
};

/// One block with a warp per rank of the device: they wait for each other, and a block is resident
/// as a whole. `next` is the call that kHandOver begins. Captures into graphs.
cudaError_t launch(ProgramId program, const device::FabricGroup& group, const CallShape& call,
                   const CallShape& next, const PoisonTable& poison, cudaStream_t stream);

/// Stores each rank's self-test pattern to every peer.
cudaError_t launch_self_test(const device::FabricGroup& group, cudaStream_t stream);

/// Loads every kernel now: a lazy load between two launches that wait for each other would hang
/// them.
cudaError_t preload();

}  // namespace xstage::fabric::kernels
