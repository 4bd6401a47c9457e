#pragma once

// CTAs of one cluster: they meet, arrive at each other's barriers, and fill each other's shared
// memory (PTX ISA 9.0, cluster). A cluster lies within one GPU: nothing here touches a link.

#include <cstdint>

#include "xstage/device/mbarrier.cuh"

namespace xstage::device {

/// All threads of all CTAs of the cluster; what they wrote to shared memory before is visible
/// after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Where the CTA of this rank in the cluster has the same variable.
__device__ __forceinline__ std::uint32_t shared_address_of(const void* shared, std::uint32_t rank) {
    std::uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(shared)), "r"(rank));
    return address;
}

/// At another CTA's barrier, by a thread that has read what may now be written over. For what it
/// wrote itself this is not enough; the release that would be is a fence of the whole GPU.
__device__ __forceinline__ void mbarrier_arrive_of(MBarrier* barrier, std::uint32_t rank) {
    asm volatile(
        "mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_address_of(barrier, rank))
        : "memory");
}

/// The same; what this thread wrote before, also to that CTA's shared memory, is visible to who
/// waits with mbarrier_wait_cluster.
__device__ __forceinline__ void mbarrier_release_of(MBarrier* barrier, std::uint32_t rank) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     shared_address_of(barrier, rank))
                 : "memory");
}

/// mbarrier_wait for a phase that ends with another CTA's mbarrier_release_of.
__device__ __forceinline__ void mbarrier_wait_cluster(MBarrier* barrier, std::uint32_t parity) {
    std::uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}

__device__ __forceinline__ std::uint32_t ld_shared_u32_of(const std::uint32_t* shared,
                                                          std::uint32_t rank) {
    std::uint32_t value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"(shared_address_of(shared, rank))
                 : "memory");
    return value;
}

__device__ __forceinline__ void st_shared_u32_of(std::uint32_t* shared, std::uint32_t rank,
                                                 std::uint32_t value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(shared_address_of(shared, rank)),
                 "r"(value)
                 : "memory");
}

/// bulk_tensor_load_2d to the same place of every CTA in `ranks` (bit r: rank r), each of whose
/// barriers counts the bytes.
__device__ __forceinline__ void bulk_tensor_load_2d_to(void* shared, const void* map,
                                                       MBarrier* barrier, std::int32_t column,
                                                       std::int32_t row, std::uint16_t ranks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(ranks)
        : "memory");
}

}  // namespace xstage::device
