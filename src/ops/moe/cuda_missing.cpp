#include "ops/moe/impl.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {

std::unique_ptr<Engine> make_cuda_engine(const EngineArgs&) {
    throw Error(ErrorKind::kUnsupported,
                "this build has no MoE kernels (they need CUDA and the CUTLASS headers): only the "
                "host backend works");
}

}  // namespace xstage::moe
