// Stands in for the CUDA parts where there is no nvcc.
#include "fabric/cuda_backend.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {
constexpr const char* kMissing = "xstage was built without CUDA";
}

CudaParts open_cuda(const FabricOptions&, const std::vector<int>&, const std::vector<int>&) {
    throw Error(ErrorKind::kUnsupported, kMissing);
}

std::unique_ptr<Engine> make_cuda_engine(const FabricOptions&, const std::vector<int>&,
                                         const std::vector<int>&, const Blocks&,
                                         std::function<bool(int)>, std::shared_ptr<FabricKernels>) {
    throw Error(ErrorKind::kUnsupported, kMissing);
}

}  // namespace xstage::fabric
