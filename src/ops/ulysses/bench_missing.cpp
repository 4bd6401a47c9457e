#include "ops/ulysses/bench.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {

BenchReport run_bench(const BenchOptions&) {
    throw Error(ErrorKind::kUnsupported, "this build has no CUDA, which `bench ulysses` needs");
}

}  // namespace xstage::ulysses
