#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/engine.hpp"
#include "fabric/memory.hpp"

namespace xstage::fabric {

/// The devices of this process's ranks, opened, and memory on them. Both throw Error (kUnsupported)
/// with what is missing: CUDA in this build, a driver, a device, virtual memory management.
struct CudaParts {
    std::shared_ptr<Memory> memory;
    std::vector<int> devices;             ///< CUDA ordinal per local rank
    std::vector<std::string> device_ids;  ///< UUID per local rank
};
/// `places` are the local ranks' numbers on this machine, which choose the device unless told.
CudaParts open_cuda(const FabricOptions& options, const std::vector<int>& local_ranks,
                    const std::vector<int>& places);

/// The programs' kernels (fabric/cuda_kernels.hpp): by stores alone, or by puts too.
class FabricKernels;

std::unique_ptr<Engine> make_cuda_engine(const FabricOptions& options,
                                         const std::vector<int>& local_ranks,
                                         const std::vector<int>& devices, const Blocks& blocks,
                                         std::function<bool(int)> peer_left,
                                         std::shared_ptr<FabricKernels> kernels);

}  // namespace xstage::fabric
