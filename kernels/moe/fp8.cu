#include "make_launch.cuh"

namespace xstage::moe::kernels {

cudaError_t launch_fp8(const KernelParams& p, int ranks, cudaStream_t stream) {
    return launch<Config<Type::kFp8>>(p, ranks, stream);
}

cudaError_t prepare_fp8(int* ctas_per_processor) {
    return prepare<Config<Type::kFp8>>(ctas_per_processor);
}

}  // namespace xstage::moe::kernels
