#pragma once

// The signal protocol on the device. A block of one warp acts for one rank; lane p deals with peer
// p. Data is stored by earlier kernels of the stream, or by the same kernel before a grid-wide
// sync.

#include <cstddef>
#include <cstdint>

#include "xstage/device/fabric_group.hpp"
#include "xstage/device/ptx.cuh"

namespace xstage::device {

/// True when the group is broken: store nothing to peers, fill the output with NaN, return.
__device__ __forceinline__ bool fabric_broken(const FabricGroup& group, int local) {
    return ld_relaxed_sys_u64(&group.state[local].broken) != 0;
}

/// Every peer's words are mapped: signals are stores. A word is named by its place in this rank's
/// own block, which is the same in every block.
struct MappedPeers {
    __device__ static void store(const FabricGroup& group, int peer, const fabric::SignalBlock& own,
                                 const std::uint64_t* place, std::uint64_t value,
                                 fabric::protocol::Order order) {
        const std::ptrdiff_t offset = place - reinterpret_cast<const std::uint64_t*>(&own);
        std::uint64_t* const word = reinterpret_cast<std::uint64_t*>(group.block[peer]) + offset;
        if (order == fabric::protocol::Order::kRelease) {
            st_release_sys_u64(word, value);
        } else {
            st_relaxed_sys_u64(word, value);
        }
    }
    /// Called by one thread, before a barrier's signals: what was put is there.
    __device__ static void complete() {}
    /// A peer's word has been seen; what it announces may be read after this.
    __device__ static void arrived(const FabricGroup&, int, const std::uint64_t*, std::uint64_t) {}
};

/// The port of protocol::run. All 32 lanes of the warp call every member together. `Peers` says how
/// words reach the others.
template <class Peers>
class BasicFabricPort {
  public:
    __device__ BasicFabricPort(const FabricGroup& group, int local, const fabric::CallShape& call)
        : group_(group),
          state_(group.state[local]),
          report_(group.report[local]),
          own_(*group.block[group.ranks[local]]),
          call_(call),
          rank_(group.ranks[local]),
          lane_(threadIdx.x % 32),
          peer_(lane_ < group.world && lane_ != rank_),
          broken_(state_.broken),
          number_(state_.call),
          chain_(state_.chain),
          barrier_(state_.barrier),
          sent_(state_.sent[call.channel]),
          received_(state_.received[call.channel]) {
        // Nobody may write the counters back before everybody has read them.
        __syncwarp();
    }

    __device__ bool broken() const { return broken_ != 0; }

    __device__ void count_call() {
        ++number_;
        chain_ =
            fabric::protocol::mix(chain_, fabric::protocol::mix(call_.signature, call_.channel));
        if (lane_ == 0) {
            state_.call = number_;
            state_.chain = chain_;
        }
    }
    __device__ void grant(fabric::protocol::Order order) {
        if (!peer_) return;
        // One fence in front of relaxed stores releases all of them.
        if (order == fabric::protocol::Order::kRelease) fence_acq_rel_sys();
        for (std::uint32_t c = call_.first_channel; c < call_.first_channel + call_.channels; ++c)
            store(&there().credit[c], fabric::protocol::pack(state_.received[c], 0),
                  fabric::protocol::Order::kPlain);
    }
    __device__ void announce(fabric::protocol::Order order) {
        store(&there().announce[number_ % fabric::kAnnounceSlots], announcement(), order);
    }
    __device__ bool await_credit(fabric::protocol::Order order) {
        return await(fabric::SignalKind::kCredit, &mine().credit[call_.channel], sent_, order);
    }
    __device__ void proxy_fence() { fence_proxy_async(); }
    __device__ void count_send() {
        ++sent_;
        if (lane_ == 0) state_.sent[call_.channel] = sent_;
    }
    __device__ void signal(fabric::protocol::Order order) {
        store(&there().data[call_.channel], fabric::protocol::pack(sent_, call_.signature), order);
    }
    __device__ void count_receive() {
        ++received_;
        if (lane_ == 0) state_.received[call_.channel] = received_;
    }
    __device__ bool await_data(fabric::protocol::Order order) {
        return await(fabric::SignalKind::kData, &mine().data[call_.channel], received_, order);
    }
    __device__ void count_barrier() {
        ++barrier_;
        if (lane_ == 0) state_.barrier = barrier_;
    }
    __device__ void signal_barrier(fabric::protocol::Order order) {
        if (lane_ == 0) Peers::complete();
        __syncwarp();
        store(&there().barrier, fabric::protocol::pack(barrier_, chain_), order);
    }
    __device__ bool await_barrier(fabric::protocol::Order order) {
        return await(fabric::SignalKind::kBarrier, &mine().barrier, barrier_, order);
    }

    /// Waits until `source` has set this word for the data that await_data will count.
    __device__ bool await_chunk(int source, const std::uint64_t* word) {
        return await(fabric::SignalKind::kData, word, received_ + 1,
                     fabric::protocol::Order::kAcquire, lane_ == source);
    }

  private:
    using Lane = fabric::Lane;
    static constexpr unsigned kAll = 0xffffffffu;
    /// Between looks at the clock, the peers' aborts and the host's word.
    static constexpr unsigned kSpinsPerLook = 64;

    /// This rank's lane, which names its place in every peer's block, and the peer's lane in ours.
    __device__ const Lane& there() const { return own_.from[rank_]; }
    __device__ Lane& mine() const { return own_.from[lane_ < group_.world ? lane_ : rank_]; }
    __device__ std::uint64_t announcement() const {
        return fabric::protocol::pack(number_, chain_);
    }

    __device__ void store(const std::uint64_t* place, std::uint64_t value,
                          fabric::protocol::Order order) {
        if (peer_) Peers::store(group_, lane_, own_, place, value, order);
    }

    __device__ bool await(fabric::SignalKind kind, const std::uint64_t* word, std::uint64_t epoch,
                          fabric::protocol::Order order) {
        return await(kind, word, epoch, order, peer_);
    }
    /// `waits`: whether this lane has a word to wait for.
    __device__ bool await(fabric::SignalKind kind, const std::uint64_t* word, std::uint64_t epoch,
                          fabric::protocol::Order order, bool waits) {
        const bool acquire = order == fabric::protocol::Order::kAcquire;
        bool done = !waits;
        std::uint64_t seen = 0;
        std::uint64_t start = 0;
        for (unsigned spins = 0;; ++spins) {
            if (!done) {
                seen = acquire ? ld_acquire_sys_u64(word) : ld_relaxed_sys_u64(word);
                done = fabric::protocol::epoch_of(seen) >= epoch;
            }
            if (__all_sync(kAll, done)) break;
            if (spins % kSpinsPerLook != kSpinsPerLook - 1) continue;
            if (start == 0) start = global_ns();
            if (!look(kind, epoch, done, seen, global_ns() - start)) return false;
        }
        // A peer at this very epoch must mean this very call.
        const std::uint64_t tag = kind == fabric::SignalKind::kBarrier ? chain_ : call_.signature;
        const bool differs = waits && kind != fabric::SignalKind::kCredit &&
                             fabric::protocol::epoch_of(seen) == epoch &&
                             fabric::protocol::tag_of(seen) != (tag & fabric::protocol::kTagMask);
        const unsigned wrong = __ballot_sync(kAll, differs);
        if (wrong != 0) return fail(fabric::FailureKind::kDisagreement, kind, wrong, epoch, seen);
        if (waits) Peers::arrived(group_, lane_, word, seen);
        __syncwarp();
        return true;
    }

    /// The slow half of a wait: is there still hope that the words will come?
    __device__ bool look(fabric::SignalKind kind, std::uint64_t epoch, bool done,
                         std::uint64_t seen, std::uint64_t waited_ns) {
        const std::uint64_t abort = peer_ ? ld_acquire_sys_u64(&mine().abort) : 0;
        const unsigned aborted = __ballot_sync(kAll, abort != 0);
        if (aborted != 0) {
            const std::uint64_t word = __shfl_sync(kAll, abort, __ffs(aborted) - 1);
            return adopt(word, 0);
        }
        const std::uint64_t announced =
            peer_ ? ld_relaxed_sys_u64(&mine().announce[number_ % fabric::kAnnounceSlots]) : 0;
        const bool differs =
            peer_ && announced != announcement() &&
            fabric::protocol::epoch_of(announced) == fabric::protocol::epoch_of(announcement());
        const unsigned wrong = __ballot_sync(kAll, differs);
        if (wrong != 0)
            return fail(fabric::FailureKind::kDisagreement, kind, wrong, epoch, announced);
        const unsigned missing = __ballot_sync(kAll, !done);
        const std::uint64_t stop = ld_relaxed_sys_u64(group_.stop);
        const unsigned gone = fabric::Failure::decode(stop).ranks & missing;
        if (gone != 0) return fail(fabric::FailureKind::kPeerLeft, kind, gone, epoch, seen);
        if (waited_ns < group_.timeout_ns) return true;
        return fail(fabric::FailureKind::kTimeout, kind, missing, epoch, seen);
    }

    __device__ bool adopt(std::uint64_t failure, std::uint64_t seen) {
        if (lane_ == 0) {
            st_relaxed_sys_u64(&report_.reporter, static_cast<std::uint64_t>(rank_));
            st_relaxed_sys_u64(&report_.seen, seen);
            st_release_sys_u64(&report_.failure, failure);
            st_relaxed_sys_u64(&state_.broken, failure);
        }
        __syncwarp();
        return false;
    }

    __device__ bool fail(fabric::FailureKind kind, fabric::SignalKind signal, unsigned ranks,
                         std::uint64_t epoch, std::uint64_t seen) {
        fabric::Failure failure;
        failure.kind = kind;
        failure.signal = signal;
        failure.channel = static_cast<std::uint8_t>(call_.channel);
        failure.ranks = static_cast<std::uint16_t>(ranks);
        failure.epoch = epoch;
        const std::uint64_t word = failure.encode();
        adopt(word, __shfl_sync(kAll, seen, __ffs(ranks) - 1));
        store(&there().abort, word, fabric::protocol::Order::kRelease);
        if (group_.trap) {
            fence_acq_rel_sys();
            __trap();
        }
        return false;
    }

    const FabricGroup& group_;
    fabric::RankState& state_;
    fabric::FailureReport& report_;
    fabric::SignalBlock& own_;
    const fabric::CallShape& call_;
    int rank_;
    int lane_;
    bool peer_;
    std::uint64_t broken_, number_, chain_, barrier_, sent_, received_;
};

using FabricPort = BasicFabricPort<MappedPeers>;

}  // namespace xstage::device
