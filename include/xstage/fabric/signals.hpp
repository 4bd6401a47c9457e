#pragma once

// The words that ranks exchange and count in, shared by the host backend and the kernels.

#include <cstdint>

#include "xstage/fabric/protocol.hpp"

namespace xstage::fabric {

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxChannels = 32;   ///< buffers of all stitched tensors of a group
inline constexpr int kAnnounceSlots = 4;  ///< a rank is never further ahead of a waiting peer

/// What one peer has written to this rank. Only that peer writes it, so no word has two writers.
struct alignas(128) Lane {
    std::uint64_t barrier;
    std::uint64_t abort;  ///< an encoded Failure; 0 while all is well
    std::uint64_t announce[kAnnounceSlots];
    std::uint64_t data[kMaxChannels];
    std::uint64_t credit[kMaxChannels];
    std::uint64_t self_test[2];
};

/// In symmetric memory, one per rank.
struct SignalBlock {
    Lane from[kMaxRanks];
};

/// A rank's own counters. They live beside the signals on the device, never on the host: a host
/// counter would be baked into a captured graph.
struct RankState {
    std::uint64_t broken;  ///< an encoded Failure
    std::uint64_t call;
    std::uint64_t chain;
    std::uint64_t barrier;
    std::uint64_t sent[kMaxChannels];
    std::uint64_t received[kMaxChannels];
};

enum class FailureKind : std::uint8_t { kNone, kTimeout, kDisagreement, kPeerLeft };
enum class SignalKind : std::uint8_t { kCredit, kData, kBarrier, kSetUp };

/// Why a group is broken; fits one word, so that it travels to the peers with a single store.
struct Failure {
    FailureKind kind = FailureKind::kNone;
    SignalKind signal = SignalKind::kBarrier;
    std::uint8_t channel = 0;
    std::uint16_t ranks = 0;  ///< bit per rank that is missing or disagrees
    std::uint64_t epoch = 0;  ///< the epoch that was waited for, modulo 2^32

    XSTAGE_HD constexpr std::uint64_t encode() const {
        return static_cast<std::uint64_t>(kind) << 60 | static_cast<std::uint64_t>(signal) << 56 |
               static_cast<std::uint64_t>(channel) << 48 | static_cast<std::uint64_t>(ranks) << 32 |
               (epoch & 0xffffffffu);
    }
    XSTAGE_HD static constexpr Failure decode(std::uint64_t word) {
        Failure f;
        f.kind = static_cast<FailureKind>(word >> 60);
        f.signal = static_cast<SignalKind>(word >> 56 & 0xf);
        f.channel = static_cast<std::uint8_t>(word >> 48 & 0xff);
        f.ranks = static_cast<std::uint16_t>(word >> 32 & 0xffff);
        f.epoch = word & 0xffffffffu;
        return f;
    }
    constexpr bool operator==(const Failure&) const = default;
};

/// Host memory that a failing kernel reports into (pinned, so that the host needs no copy).
struct FailureReport {
    std::uint64_t failure;  ///< an encoded Failure, written last
    std::uint64_t reporter;
    std::uint64_t seen;  ///< the word that was there instead
};

/// What the self-test of set-up stores: differs for every pair, and is neither zero nor a counter.
XSTAGE_HD constexpr std::uint64_t self_test_pattern(int from, int to) {
    return protocol::mix(0x5e1f7e57, static_cast<std::uint64_t>(from * kMaxRanks + to)) | 1;
}

/// Mixed into the chain of calls for a barrier.
inline constexpr std::uint64_t kBarrierSignature = 0xba441e4;

/// One call on one buffer, as every rank must describe it.
struct CallShape {
    std::uint32_t first_channel = 0;  ///< the tensor's first buffer
    std::uint32_t channels = 0;       ///< how many buffers it has
    std::uint32_t channel = 0;        ///< the buffer of this call
    std::uint64_t signature = 0;      ///< layout, sizes and dtype, mixed
};

}  // namespace xstage::fabric
