#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "instance.hpp"
#include "kernel.cuh"

namespace xstage::attention {

template <class C>
Instance make_instance(const char* name) {
    constexpr bool kIsBf16 = std::is_same_v<typename C::Element, __nv_bfloat16>;
    return {name,
            kIsBf16 ? AttentionType::kBf16 : AttentionType::kFp16,
            C::kHeadDim,
            C::kMask,
            C::kRows,
            C::kKeys,
            C::kThreads,
            sizeof(SharedStorage<C>) + 1024,  // room to align the buffers
            reinterpret_cast<const void*>(&attention_kernel<C>)};
}

}  // namespace xstage::attention
