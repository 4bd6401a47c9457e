#include "ops/ulysses/mover.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {

std::unique_ptr<Mover> make_cuda_mover(const fabric::Fabric&) {
    throw Error(ErrorKind::kUnsupported, "this build has no CUDA: only the host backend works");
}

}  // namespace xstage::ulysses
