#pragma once

// Bulk tensor copies through five-dimensional maps. The engine fills what lies outside of the
// tensor with zeros when it loads and leaves it out when it stores, so tails need no predicate.

#include <cstdint>

#include "xstage/device/mbarrier.cuh"
#include "xstage/device/ptx.cuh"

namespace xstage::device {

/// Coordinates of a box's first element, fastest dimension first. They may lie outside the tensor.
struct BoxCoordinates {
    std::int32_t c0, c1, c2, c3, c4;
};

__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Global to this CTA's shared memory; the barrier counts the bytes.
__device__ __forceinline__ void bulk_tensor_load_5d(void* shared, const void* map,
                                                    MBarrier* barrier, BoxCoordinates at) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3),
        "r"(at.c4)
        : "memory");
}

/// The same through a map of two dimensions, from element (column, row).
__device__ __forceinline__ void bulk_tensor_load_2d(void* shared, const void* map,
                                                    MBarrier* barrier, std::int32_t column,
                                                    std::int32_t row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
        : "memory");
}

/// Global to this CTA's shared memory, no map. Addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                          MBarrier* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

__device__ __forceinline__ void bulk_tensor_store_5d(const void* map, const void* shared,
                                                     BoxCoordinates at) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], "
        "[%1];" ::"l"(map),
        "r"(shared_address(shared)), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(at.c4)
        : "memory");
}

}  // namespace xstage::device
