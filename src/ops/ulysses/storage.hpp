#pragma once

#include "xstage/fabric.hpp"
#include "xstage/ulysses/transform.hpp"

namespace xstage::ulysses {

/// Calls `f` with a value of the dtype's storage type.
template <class F>
void with_storage(fabric::DType dtype, F&& f) {
    switch (dtype) {
        case fabric::DType::kF16:
            f(Fp16{});
            break;
        case fabric::DType::kF32:
            f(Fp32{});
            break;
        default:
            f(Bf16{});
            break;
    }
}

}  // namespace xstage::ulysses
