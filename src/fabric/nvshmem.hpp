#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/cuda_backend.hpp"
#include "fabric/heap.hpp"
#include "fabric/rendezvous.hpp"

namespace xstage::fabric {

struct NvshmemVersion {
    int major = 0, minor = 0, patch = 0;
    bool operator==(const NvshmemVersion&) const = default;
    std::string text() const;
};

/// The headers that this was compiled with, the host library that was found, and the device code
/// that was linked in. Throws Error (kEnvironment) naming both numbers of a pair that differs:
/// their structures are laid out alike only within a release.
void check_versions(const NvshmemVersion& headers, const NvshmemVersion& host_library,
                    const NvshmemVersion& device_library);

/// Rendezvous::agree of the group.
using Agree = std::function<std::vector<std::string>(
    const std::string& call, const Outcome& outcome, const std::string& payload)>;

struct NvshmemParts {
    std::shared_ptr<SymmetricHeap> heap;
    std::shared_ptr<FabricKernels> kernels;
};

/// Starts NVSHMEM in this process, or joins it when the program has started it (by MPI or PMI, say)
/// with the same ranks. Collective. Throws the same Error on all ranks: kUnsupported without the
/// library or in a build without it, kEnvironment for versions that differ or a start that failed.
NvshmemParts open_nvshmem(const FabricOptions& options, const std::vector<int>& nodes, int device,
                          const Agree& agree);

}  // namespace xstage::fabric
