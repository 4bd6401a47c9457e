#pragma once

// What the probe's kernels are given and what they leave behind; plain data for both sides.

#include <cstdint>
#include <xstage/device/wait_report.hpp>

namespace xstage::probe {

constexpr int kMaxSms = 256;
constexpr int kMaxDestinations = 8;
constexpr int kMaxWorkers = 16;  ///< storing warps per CTA
constexpr int kMaxBursts = 32;
constexpr int kBesideWarps = 4;

/// Start lines of one launch (xstage/device/sync.cuh): `lines` entries and one word per CTA.
struct LineMemory {
    std::uint32_t* count;
    std::uint64_t* start_ns;
    std::uint32_t* arrived;
};

/// One CTA's account of one round.
struct CtaRound {
    std::uint64_t start_ns;
    std::uint64_t end_ns;  ///< after the fence
    std::uint64_t window_cycles;
    std::uint64_t window_ns;
    std::uint32_t sm;
    std::uint32_t stored;       ///< 0: this SM was masked out
    std::uint32_t quiet_steps;  ///< of one warp of the work beside, before the stores
    std::uint32_t quiet_cycles;
    std::uint32_t storing_steps;  ///< the same warp, from the start to about the end of issue
    std::uint32_t storing_cycles;
    std::uint32_t fence_cycles;  ///< from the start to the end of the fence
    std::uint32_t total_cycles[kMaxWorkers];
};

struct StoreParams {
    char* destination[kMaxDestinations];
    std::uint32_t destinations;
    std::uint32_t span;        ///< address range of one burst of one producer
    std::uint32_t slots;       ///< bursts that fit the window; addresses wrap after them
    std::uint32_t first_slot;  ///< where this launch goes on
    std::uint32_t rewrite;     ///< every burst to the same addresses
    std::uint32_t bytes;
    std::uint32_t bursts;
    std::uint32_t gap_cycles;
    std::uint32_t gap_ns;   ///< the same for gaps counted from the slowest producer
    std::uint32_t gap_all;  ///< count the gap from the slowest producer
    std::uint32_t warps;
    std::uint32_t rounds;
    std::uint32_t seed;
    std::uint32_t warm_cycles_first;
    std::uint32_t warm_cycles;
    std::uint64_t sm_mask[kMaxSms / 64];
    std::uint64_t wait_budget_ns;
    std::uint32_t beside_shift;    ///< the work beside is counted in 32 intervals of 2^shift cycles
    const uint8_t* beside_memory;  ///< local, kBesideBytes, for the loads beside the stores
    LineMemory lines;
    device::WaitReport* report;
    CtaRound* rounds_out;       ///< [round][cta]
    std::uint32_t* issue_out;   ///< [round][burst][cta][worker]
    std::uint32_t* posted_out;  ///< the same; bulk paths only
};

constexpr std::uint64_t kBesideBytes = std::uint64_t{1} << 30;

/// A tensor map as the driver encodes it; 64-byte aligned by its own rule.
struct alignas(64) TensorMap {
    std::uint64_t opaque[16];
};
struct TensorMaps {
    TensorMap map[kMaxDestinations];
};

struct VisibleParams {
    char* destination;
    std::uint32_t slots;
    std::uint32_t first_slot;
    std::uint32_t rewrite;
    std::uint32_t bytes;
    std::uint32_t warps;
    std::uint32_t producers;
    std::uint32_t all_fence;
    std::uint32_t rounds;
    std::uint32_t seed;
    std::uint32_t warm_cycles_first;
    std::uint32_t warm_cycles;
    std::uint64_t wait_budget_ns;
    std::uint32_t* flag;     ///< in the reader's memory
    std::uint32_t* echo;     ///< in the sender's memory
    std::uint32_t* checked;  ///< in the sender's memory
    LineMemory lines;
    std::uint32_t* arrivals;  ///< sender's, one per round: CTAs whose fence is done
    device::WaitReport* report;
    CtaRound* rounds_out;        ///< total_cycles[0]: issue, fence_cycles: fence
    std::uint64_t* echo_out;     ///< [round]{cycles, ns}
    std::uint32_t* reader_done;  ///< reader's, one per round
    std::uint32_t* stale_out;    ///< reader's, one per round
    device::WaitReport* reader_report;
};

struct LitmusParams {
    char* messages;          ///< in the reader's memory, [channel][slot][kMessageBytes]
    std::uint32_t* flags;    ///< in the reader's memory, [channel], one per 128 bytes
    std::uint32_t* credits;  ///< in the sender's memory, [channel], one per 128 bytes
    char* load;              ///< in the reader's memory, where the load is stored
    std::uint64_t load_bytes;
    std::uint32_t channels;  ///< warps that send messages
    std::uint32_t slots;
    std::uint32_t first;  ///< generation of the first message (from 1)
    std::uint32_t messages_per_channel;
    std::uint32_t message_ctas;
    std::uint32_t load_ctas;
    std::uint32_t fence;  ///< LitmusFence
    std::uint64_t wait_budget_ns;
    std::uint32_t* load_stop;       ///< sender's: message CTAs that are done
    std::uint32_t load_stop_at;     ///< when the load may end
    std::uint32_t reader_messages;  ///< per channel, over all the sender's launches
    unsigned long long* trials;
    unsigned long long* stale_messages;
    unsigned long long* stale_words;
    device::WaitReport* report;
    device::WaitReport* reader_report;
};

constexpr std::uint32_t kMessageBytes = 2048;
constexpr std::uint32_t kFlagStride = 32;  ///< words: one flag per 128 bytes

}  // namespace xstage::probe
