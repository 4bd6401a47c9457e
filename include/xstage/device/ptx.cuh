#pragma once

// One wrapper per PTX instruction; order, scope and width stand in the name. Nothing here decides
// anything: what a sequence of these guarantees is said where the sequence is written.
// Source of every form: PTX ISA 9.0. Portable to sm_90a and later.

#include <cstdint>

namespace xstage::device {

// ---- clocks and places --------------------------------------------------------------------------

/// Cycles of this SM. Two SMs' counters must never be subtracted.
__device__ __forceinline__ std::uint64_t clock_cycles() {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value)::"memory");
    return value;
}

/// Nanoseconds of this GPU, common to its SMs; steps by 32 ns on Hopper. Never compare two GPUs'.
__device__ __forceinline__ std::uint64_t global_ns() {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
    return value;
}

__device__ __forceinline__ std::uint32_t sm_id() {
    std::uint32_t value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

/// Lane of the warp, read anew each time: what comes from it is not kept in registers across loops.
__device__ __forceinline__ int lane_id_again() {
    int value;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

/// A pointer that the compiler knows nothing of, so that nothing built on it leaves a loop.
template <class T>
__device__ __forceinline__ T* opaque(T* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

__device__ __forceinline__ void nanosleep(std::uint32_t ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- stores and loads ---------------------------------------------------------------------------

__device__ __forceinline__ void st_weak_v4(void* address, uint4 value) {
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ void st_weak_u32(void* address, std::uint32_t value) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint4 ld_weak_v4(const void* address) {
    uint4 v;
    asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

/// Not kept in L1, so that a second reading of the same line asks L2 again.
__device__ __forceinline__ uint4 ld_no_l1_v4(const void* address) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint4 ld_shared_v4(const void* shared) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared_address(shared))
                 : "memory");
    return v;
}

#define XSTAGE_ST(name, order_scope, type, bits, reg)                                          \
    __device__ __forceinline__ void name(type* address, type value) {                          \
        asm volatile("st." order_scope ".global." bits " [%0], %1;" ::"l"(address), reg(value) \
                     : "memory");                                                              \
    }
#define XSTAGE_LD(name, order_scope, type, bits, reg)               \
    __device__ __forceinline__ type name(const type* address) {     \
        type value;                                                 \
        asm volatile("ld." order_scope ".global." bits " %0, [%1];" \
                     : reg(value)                                   \
                     : "l"(address)                                 \
                     : "memory");                                   \
        return value;                                               \
    }

XSTAGE_ST(st_relaxed_sys_u32, "relaxed.sys", std::uint32_t, "b32", "r")
XSTAGE_ST(st_relaxed_sys_u64, "relaxed.sys", std::uint64_t, "b64", "l")
XSTAGE_ST(st_release_gpu_u32, "release.gpu", std::uint32_t, "b32", "r")
XSTAGE_ST(st_release_gpu_u64, "release.gpu", std::uint64_t, "b64", "l")
XSTAGE_ST(st_release_sys_u32, "release.sys", std::uint32_t, "b32", "r")
XSTAGE_ST(st_release_sys_u64, "release.sys", std::uint64_t, "b64", "l")
XSTAGE_LD(ld_relaxed_gpu_u32, "relaxed.gpu", std::uint32_t, "b32", "=r")
XSTAGE_LD(ld_relaxed_sys_u32, "relaxed.sys", std::uint32_t, "b32", "=r")
XSTAGE_LD(ld_relaxed_sys_u64, "relaxed.sys", std::uint64_t, "b64", "=l")
XSTAGE_LD(ld_acquire_gpu_u32, "acquire.gpu", std::uint32_t, "b32", "=r")
XSTAGE_LD(ld_acquire_gpu_u64, "acquire.gpu", std::uint64_t, "b64", "=l")
XSTAGE_LD(ld_acquire_sys_u32, "acquire.sys", std::uint32_t, "b32", "=r")
XSTAGE_LD(ld_acquire_sys_u64, "acquire.sys", std::uint64_t, "b64", "=l")

#undef XSTAGE_ST
#undef XSTAGE_LD

// ---- reductions without a result, and counting --------------------------------------------------

/// System scope: the memory may be a peer's, and other GPUs may add to the same word.
__device__ __forceinline__ void red_relaxed_sys_add_f32(float* address, float value) {
    asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void red_relaxed_sys_add_f32x4(void* address, float4 v) {
    asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(address), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ void red_relaxed_sys_add_bf16x2(void* address, std::uint32_t pair) {
    asm volatile("red.relaxed.sys.global.add.noftz.bf16x2 [%0], %1;" ::"l"(address), "r"(pair)
                 : "memory");
}

__device__ __forceinline__ void red_release_gpu_add_u32(std::uint32_t* address,
                                                        std::uint32_t value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void red_release_sys_add_u32(std::uint32_t* address,
                                                        std::uint32_t value) {
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ std::uint32_t atom_acq_rel_gpu_add_u32(std::uint32_t* address,
                                                                  std::uint32_t value) {
    std::uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(value)
                 : "memory");
    return before;
}

__device__ __forceinline__ std::uint32_t atom_acq_rel_sys_add_u32(std::uint32_t* address,
                                                                  std::uint32_t value) {
    std::uint32_t before;
    asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(value)
                 : "memory");
    return before;
}

// ---- fences -------------------------------------------------------------------------------------

__device__ __forceinline__ void fence_acq_rel_gpu() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ void fence_acq_rel_sys() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/// Between generic and asynchronous accesses to any memory.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

/// Shared memory written by ordinary stores, then read by a bulk copy: by each writing thread.
__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- barriers within a CTA ----------------------------------------------------------------------

/// Named barrier: `threads` threads (a multiple of 32) meet at `id` (1..15; 0 is __syncthreads).
__device__ __forceinline__ void bar_sync(std::uint32_t id, std::uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- bulk copies --------------------------------------------------------------------------------

/// Shared to global (local or peer). Addresses and bytes are multiples of 16.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

/// Box of a tensor map from shared memory, at element coordinates (column, row).
__device__ __forceinline__ void bulk_tensor_store_2d(const void* map, const void* shared,
                                                     std::int32_t column, std::int32_t row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(shared_address(shared)), "r"(column), "r"(row)
        : "memory");
}

/// Adds f32 words of shared memory to global memory.
__device__ __forceinline__ void bulk_reduce_add_f32(void* global, const void* shared,
                                                    std::uint32_t bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
        "r"(shared_address(shared)), "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Until at most N of the latest groups have shared memory left to read: it may then be reused.
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/// Until at most N of the latest groups are incomplete. Their writes are then visible to this
/// thread; a peer may read them only after a system-scope release by it.
template <int N>
__device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// ---- programmatic launch ------------------------------------------------------------------------

__device__ __forceinline__ void grid_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void grid_wait_prerequisites() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- tensor cores -------------------------------------------------------------------------------

/// d += a (16x16, row) * b (16x8, column), bf16 in and f32 out, one warp.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace xstage::device
