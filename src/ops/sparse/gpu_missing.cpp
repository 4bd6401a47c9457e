#include "ops/sparse/engine.hpp"
#include "xstage/error.hpp"

namespace xstage::ops {

namespace {

[[noreturn]] void missing() {
    throw Error(ErrorKind::kUnsupported,
                "this xstage was built without its attention kernel, which needs CUDA and the "
                "CUTLASS headers; only host memory works (on_host)");
}

}  // namespace

MaskedAttention masked_on_gpu(const ulysses::AttentionCall&) {
    missing();
}

Mass mass_on_gpu(const MassCall&) {
    missing();
}

}  // namespace xstage::ops
