#pragma once

// The protocol's programs, for kernels whose peers are all mapped and for those that put: one warp
// per rank, lane p for peer p. The ranks of a device wait for each other, so their warps form one
// block: it is resident as a whole or not at all, which a grid would need a cooperative launch for.

#include "signals.cuh"
#include "xstage/device/fabric.cuh"

namespace xstage::fabric::kernels {

inline constexpr int kMostThreads = 32 * kMaxRanks;

template <ProgramId kProgram, class Port>
__device__ bool run(Port& port) {
    if (port.broken()) return false;
    if constexpr (kProgram == ProgramId::kBegin) {
        return protocol::run(protocol::begin_program(), port);
    } else if constexpr (kProgram == ProgramId::kPublish) {
        return protocol::run(protocol::publish_program(), port);
    } else if constexpr (kProgram == ProgramId::kAcquire) {
        return protocol::run(protocol::acquire_program(), port);
    } else if constexpr (kProgram == ProgramId::kExchange) {
        return protocol::run(protocol::publish_program(), port) &&
               protocol::run(protocol::acquire_program(), port);
    } else {
        return protocol::run(protocol::barrier_program(), port);
    }
}

/// One warp is enough: only a broken group comes here. Chunks are whole pages, so 16 bytes divide
/// them.
__device__ inline void spoil(std::byte* data, std::size_t bytes) {
    const uint4 nan = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (std::size_t i = threadIdx.x % 32; i < bytes / sizeof(uint4); i += 32)
        reinterpret_cast<uint4*>(data)[i] = nan;
}

template <ProgramId kProgram, class Peers>
__device__ void program(const device::FabricGroup& group, const CallShape& call,
                        const PoisonTable& poison) {
    const int local = static_cast<int>(threadIdx.x) / 32;
    device::BasicFabricPort<Peers> port(group, local, call);
    const bool ok = run<kProgram>(port);
    if constexpr (kProgram == ProgramId::kAcquire || kProgram == ProgramId::kExchange) {
        if (!ok) spoil(poison.data[local], poison.bytes[local]);
    }
}

/// publish of `call`, begin of `next` and acquire of `call`: what stands between two kernels of
/// which the second reads what the first one's peers stored, and stores to peers itself.
template <class Peers>
__device__ void hand_over(const device::FabricGroup& group, const CallShape& call,
                          const CallShape& next, const PoisonTable& poison) {
    const int local = static_cast<int>(threadIdx.x) / 32;
    const auto step = [&]<ProgramId kProgram>(const CallShape& shape) {
        // A port reads the counters once, and the step before has written them.
        __syncwarp();
        device::BasicFabricPort<Peers> port(group, local, shape);
        return run<kProgram>(port);
    };
    const bool ok = step.template operator()<ProgramId::kPublish>(call) &&
                    step.template operator()<ProgramId::kBegin>(next) &&
                    step.template operator()<ProgramId::kAcquire>(call);
    if (!ok) spoil(poison.data[local], poison.bytes[local]);
}

template <class Peers>
__device__ void barrier(const device::FabricGroup& group, const CallShape& call) {
    device::BasicFabricPort<Peers> port(group, static_cast<int>(threadIdx.x) / 32, call);
    run<ProgramId::kBarrier>(port);
}

template <class Peers>
__device__ void self_test(const device::FabricGroup& group) {
    const int rank = group.ranks[threadIdx.x / 32];
    const int peer = static_cast<int>(threadIdx.x) % 32;
    const SignalBlock& own = *group.block[rank];
    if (peer < group.world && peer != rank)
        Peers::store(group, peer, own, &own.from[rank].self_test[0], self_test_pattern(rank, peer),
                     protocol::Order::kRelease);
}

}  // namespace xstage::fabric::kernels
