#pragma once

#include <memory>

#include "fabric/cuda_kernels.hpp"
#include "fabric/nvshmem.hpp"

namespace xstage::fabric {

/// The device code that was linked with NVSHMEM's, loaded once for the process.
cudaLibrary_t nvshmem_device_code();
NvshmemVersion nvshmem_device_version();

/// To be made once NVSHMEM knows the device code.
std::shared_ptr<FabricKernels> make_nvshmem_kernels();

}  // namespace xstage::fabric
