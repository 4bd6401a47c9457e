// Stands in for NVSHMEM where it, or nvcc, was not there to build with.
#include "fabric/nvshmem.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {

NvshmemParts open_nvshmem(const FabricOptions&, const std::vector<int>&, int, const Agree& agree) {
    const char* const missing =
        "xstage was built without NVSHMEM: run ./dev nvshmem and configure again, or set "
        "XSTAGE_NVSHMEM_ROOT";
    // A rank whose build has it waits here for the others' word.
    agree("nvshmem load", Outcome::failed(ErrorKind::kUnsupported, missing), "");
    throw Error(ErrorKind::kUnsupported, missing);
}

}  // namespace xstage::fabric
