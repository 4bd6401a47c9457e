#pragma once

// The signal protocol as data: short programs of steps that the host backend, the kernels and the
// model checker all run. tests/host/fabric/model_checker.* explores every interleaving of them and
// removes each step and each ordering in turn; docs/fabric.md tells the story in words.

#include <cstdint>

#ifdef __CUDACC__
#define XSTAGE_HD __host__ __device__
#else
#define XSTAGE_HD
#endif

namespace xstage::fabric::protocol {

enum class Action : std::uint8_t {
    kCountCall,      ///< next call number, and its signature mixed into the chain of calls
    kGrant,          ///< to each peer: what was received here, for every buffer of the tensor
    kAnnounce,       ///< to each peer: call number and chain, so that a different order is seen
    kAwaitCredit,    ///< until each peer has granted everything sent into this buffer
    kProxyFence,     ///< order ordinary accesses against bulk copies (the async proxy)
    kCountSend,      ///< one more sent into this buffer
    kSignal,         ///< to each peer: how many were sent into this buffer
    kCountReceive,   ///< one more expected in this buffer
    kAwaitData,      ///< until each peer has signalled it
    kCountBarrier,   ///< next barrier epoch
    kSignalBarrier,  ///< to each peer: the barrier epoch
    kAwaitBarrier,   ///< until each peer has signalled it
};

/// The ordering of a step's store or load, at system scope.
enum class Order : std::uint8_t { kPlain, kRelease, kAcquire };

struct Step {
    Action action;
    Order order = Order::kPlain;
};

struct Program {
    static constexpr int kMaxSteps = 6;
    Step steps[kMaxSteps];
    int count;
};

/// Before the first store of a call into a buffer. Grants first, waits after: two ranks at the same
/// call can never wait for each other. What this rank received earlier is given back here, so its
/// readers must come before this call in the stream.
XSTAGE_HD constexpr Program begin_program() {
    return {{{Action::kCountCall},
             {Action::kGrant, Order::kRelease},
             {Action::kAnnounce},
             {Action::kAwaitCredit, Order::kAcquire},
             {Action::kProxyFence}},
            5};
}

/// After the last store of the call, in a later kernel of the stream.
XSTAGE_HD constexpr Program publish_program() {
    return {{{Action::kProxyFence}, {Action::kCountSend}, {Action::kSignal, Order::kRelease}}, 3};
}

/// Before the first read of what the peers stored.
XSTAGE_HD constexpr Program acquire_program() {
    return {{{Action::kCountReceive}, {Action::kAwaitData, Order::kAcquire}, {Action::kProxyFence}},
            3};
}

XSTAGE_HD constexpr Program barrier_program() {
    return {{{Action::kCountCall},
             {Action::kCountBarrier},
             {Action::kProxyFence},
             {Action::kSignalBarrier, Order::kRelease},
             {Action::kAwaitBarrier, Order::kAcquire},
             {Action::kProxyFence}},
            6};
}

/// Runs a program on a port, which supplies one member per action and returns false when the group
/// is broken; the rest of the program is then left out.
template <class Port>
XSTAGE_HD bool run(const Program& program, Port& port) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Program::kMaxSteps; ++i) {
        if (i >= program.count) break;
        const Step step = program.steps[i];
        bool ok = true;
        switch (step.action) {
            case Action::kCountCall:
                port.count_call();
                break;
            case Action::kGrant:
                port.grant(step.order);
                break;
            case Action::kAnnounce:
                port.announce(step.order);
                break;
            case Action::kAwaitCredit:
                ok = port.await_credit(step.order);
                break;
            case Action::kProxyFence:
                port.proxy_fence();
                break;
            case Action::kCountSend:
                port.count_send();
                break;
            case Action::kSignal:
                port.signal(step.order);
                break;
            case Action::kCountReceive:
                port.count_receive();
                break;
            case Action::kAwaitData:
                ok = port.await_data(step.order);
                break;
            case Action::kCountBarrier:
                port.count_barrier();
                break;
            case Action::kSignalBarrier:
                port.signal_barrier(step.order);
                break;
            case Action::kAwaitBarrier:
                ok = port.await_barrier(step.order);
                break;
        }
        if (!ok) return false;
    }
    return true;
}

// A signal word: 40 bits of epoch, which last three years at 10 000 calls a second, and 24 bits of
// tag, by which ranks that disagree about the call find out.
inline constexpr int kTagBits = 24;
inline constexpr std::uint64_t kTagMask = (std::uint64_t{1} << kTagBits) - 1;

XSTAGE_HD constexpr std::uint64_t pack(std::uint64_t epoch, std::uint64_t tag) {
    return epoch << kTagBits | (tag & kTagMask);
}
XSTAGE_HD constexpr std::uint64_t epoch_of(std::uint64_t word) {
    return word >> kTagBits;
}
XSTAGE_HD constexpr std::uint64_t tag_of(std::uint64_t word) {
    return word & kTagMask;
}

/// Mixes a value into a hash (the finaliser of splitmix64, D. Steele et al., OOPSLA 2014).
XSTAGE_HD constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    std::uint64_t z = hash + 0x9e3779b97f4a7c15u + value;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

}  // namespace xstage::fabric::protocol
