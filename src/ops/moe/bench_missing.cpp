#include "ops/moe/bench.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {

BenchReport run_bench(const BenchOptions&) {
    throw Error(ErrorKind::kUnsupported,
                "this build has no MoE kernels (they need CUDA and the CUTLASS headers)");
}

}  // namespace xstage::moe
