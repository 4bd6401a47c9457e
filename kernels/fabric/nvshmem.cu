// The protocol's programs where some peers are on other nodes, and the kernels that send rows to
// them. NVSHMEM's device code makes this translation unit relocatable: it is linked by itself and
// loaded by name (src/fabric/nvshmem_kernels.cpp), hence the C names.

#include <nvshmem.h>
#include <nvshmemx.h>

#include "fabric/put_table.hpp"
#include "programs.cuh"

namespace xstage::fabric::kernels {
namespace {

using device::FabricGroup;
using protocol::Order;

/// Stores where a peer is mapped, signals by NVSHMEM where it is not.
struct AnyPeers {
    __device__ static void store(const FabricGroup& group, int peer, const SignalBlock& own,
                                 const std::uint64_t* place, std::uint64_t value, Order order) {
        if (group.block[peer] != nullptr) {
            device::MappedPeers::store(group, peer, own, place, value, order);
            return;
        }
        // What this thread has seen or stored comes before the signal, as for a release; data that
        // was put has a signal of its own behind it.
        if (order == Order::kRelease) device::fence_acq_rel_sys();
        nvshmemx_signal_op(const_cast<std::uint64_t*>(place), value, NVSHMEM_SIGNAL_SET, peer);
    }
    __device__ static void complete() { nvshmem_quiet(); }
    /// On some platforms a network writes a signal before data that it was told to write first is
    /// visible to the GPU; NVSHMEM's own wait knows them. It finds its value there and returns.
    __device__ static void arrived(const FabricGroup& group, int peer, const std::uint64_t* word,
                                   std::uint64_t seen) {
        if (group.block[peer] == nullptr)
            nvshmem_signal_wait_until(const_cast<std::uint64_t*>(word), NVSHMEM_CMP_GE, seen);
    }
};

template <class Unit>
__device__ void copy_units(std::byte* to, std::size_t to_stride, const std::byte* from,
                           std::size_t from_stride, std::int64_t rows, std::size_t bytes) {
    const auto per_row = static_cast<std::int64_t>(bytes / sizeof(Unit));
    for (std::int64_t i = threadIdx.x; i < rows * per_row; i += blockDim.x) {
        const std::int64_t row = i / per_row, at = i % per_row;
        reinterpret_cast<Unit*>(to + row * to_stride)[at] =
            reinterpret_cast<const Unit*>(from + row * from_stride)[at];
    }
}

/// By the whole block, in the widest units that fit every address.
__device__ void copy_rows(std::byte* to, std::size_t to_stride, const std::byte* from,
                          std::size_t from_stride, std::int64_t rows, std::size_t bytes) {
    const std::size_t odd = reinterpret_cast<std::size_t>(to) | to_stride |
                            reinterpret_cast<std::size_t>(from) | from_stride | bytes;
    if (odd % sizeof(uint4) == 0) {
        copy_units<uint4>(to, to_stride, from, from_stride, rows, bytes);
    } else if (odd % sizeof(unsigned) == 0) {
        copy_units<unsigned>(to, to_stride, from, from_stride, rows, bytes);
    } else {
        copy_units<unsigned char>(to, to_stride, from, from_stride, rows, bytes);
    }
}

/// Calls f(entry, chunk, first row, offset in the box) for the block's items until it says no.
template <class F>
__device__ void each_chunk(const PutTable& table, F&& f) {
    for (std::int64_t item = blockIdx.x; item < table.items(); item += gridDim.x) {
        const PutEntry& e = table.entry[item % table.entries];
        const std::int64_t chunk = item / table.entries;
        if (chunk >= e.chunks()) continue;
        const std::int64_t first = chunk * e.rows_per_chunk;
        if (!f(e, chunk, first * static_cast<std::int64_t>(e.row_stride),
               first * static_cast<std::int64_t>(e.part_bytes)))
            return;
    }
}

}  // namespace

extern "C" {

#define XSTAGE_PROGRAM(name, id)                                                                \
    __global__ void __launch_bounds__(kMostThreads)                                             \
        name(const __grid_constant__ FabricGroup group, const __grid_constant__ CallShape call, \
             const __grid_constant__ PoisonTable poison) {                                      \
        program<ProgramId::id, AnyPeers>(group, call, poison);                                  \
    }
XSTAGE_PROGRAM(xstage_begin, kBegin)
XSTAGE_PROGRAM(xstage_publish, kPublish)
XSTAGE_PROGRAM(xstage_acquire, kAcquire)
XSTAGE_PROGRAM(xstage_exchange, kExchange)
#undef XSTAGE_PROGRAM

__global__ void __launch_bounds__(kMostThreads)
    xstage_hand_over(const __grid_constant__ FabricGroup group,
                     const __grid_constant__ CallShape call, const __grid_constant__ CallShape next,
                     const __grid_constant__ PoisonTable poison) {
    hand_over<AnyPeers>(group, call, next, poison);
}

__global__ void __launch_bounds__(kMostThreads)
    xstage_barrier(const __grid_constant__ FabricGroup group,
                   const __grid_constant__ CallShape call) {
    barrier<AnyPeers>(group, call);
}

__global__ void __launch_bounds__(kMostThreads)
    xstage_self_test(const __grid_constant__ FabricGroup group) {
    self_test<AnyPeers>(group);
}

/// Packs chunk after chunk and puts it, with the count that publish is about to reach as its
/// signal.
__global__ void xstage_send(const __grid_constant__ FabricGroup group,
                            const __grid_constant__ CallShape call,
                            const __grid_constant__ PutTable table) {
    const RankState& state = group.state[0];
    if (device::fabric_broken(group, 0)) return;
    const std::uint64_t value = protocol::pack(state.sent[call.channel] + 1, call.signature);
    each_chunk(table, [&](const PutEntry& e, std::int64_t chunk, std::int64_t rows_offset,
                          std::int64_t box_offset) {
        const std::int64_t rows = e.rows_of(chunk);
        copy_rows(e.packed + box_offset, e.part_bytes, e.rows_at + rows_offset, e.row_stride, rows,
                  e.part_bytes);
        // Every thread's copies must be in memory before one of them tells the network to read.
        device::fence_acq_rel_sys();
        __syncthreads();
        nvshmemx_putmem_signal_nbi_block(e.target + box_offset, e.packed + box_offset,
                                         static_cast<std::size_t>(rows) * e.part_bytes,
                                         e.signals + chunk, value, NVSHMEM_SIGNAL_SET, e.peer);
        return true;
    });
}

/// Unpacks each chunk as soon as it is there.
__global__ void xstage_receive(const __grid_constant__ FabricGroup group,
                               const __grid_constant__ CallShape call,
                               const __grid_constant__ PutTable table) {
    __shared__ bool there;
    each_chunk(table, [&](const PutEntry& e, std::int64_t chunk, std::int64_t rows_offset,
                          std::int64_t box_offset) {
        if (threadIdx.x < 32) {
            device::BasicFabricPort<AnyPeers> port(group, 0, call);
            const bool ok = !port.broken() && port.await_chunk(e.peer, e.signals + chunk);
            if (threadIdx.x == 0) there = ok;
        }
        __syncthreads();
        if (!there) return false;
        copy_rows(e.rows_at + rows_offset, e.row_stride, e.packed + box_offset, e.part_bytes,
                  e.rows_of(chunk), e.part_bytes);
        __syncthreads();
        return true;
    });
}

/// Each block puts a slice; the barrier's quiet completes them.
__global__ void xstage_put(int peer, std::byte* target, const std::byte* source, std::size_t bytes,
                           std::size_t slice) {
    const std::size_t at = blockIdx.x * slice;
    if (at < bytes)
        nvshmemx_putmem_nbi_block(target + at, source + at, min(slice, bytes - at), peer);
}

}  // extern "C"

}  // namespace xstage::fabric::kernels
