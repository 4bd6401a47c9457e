#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xstage/units.hpp"

namespace xstage {

/// One GPU of the node that was measured.
struct Gpu {
    std::string name;
    std::string uuid;  ///< "GPU-..."; empty where the recording did not keep it
    int sms = 0;
    std::optional<GigaHertz> max_clock;
};

/// Where a document comes from: enough to repeat it, and to distrust it.
struct Provenance {
    std::string node;
    std::vector<Gpu> gpus;
    std::string driver;
    std::string cuda;
    std::string topology;  ///< how the GPUs are joined, in words
    std::string tool_version;
    std::string git_commit;
    std::vector<std::string> argv;
    std::string date;                             ///< ISO 8601
    bool loopback = false;                        ///< stores went to local memory: not a link
    std::optional<BytesPerNanosecond> line_rate;  ///< per direction; nothing real exceeds it
    std::vector<std::string> warnings;            ///< what a reader must know before using the rows
};

enum class BurstMode { kIsolated, kGap2, kPeriodic };
enum class Target { kRemote, kLocal };
enum class Addresses { kFresh, kRewritten };
/// What the gap is counted from: each producer's own end of issue, the slowest one's, or each
/// warp's own.
enum class GapFrom { kProducer, kAll, kWarp };
enum class Fence { kOneThread, kAllThreads };

/// Percentiles over the producers' warps (st16) or CTAs (bulk); `max` is the slowest.
struct Spread {
    std::optional<Cycles> p5;
    Cycles p50;
    std::optional<Cycles> p95;
    Cycles max;
};

/// Issue time of burst `burst` (from 0) of a row.
struct BurstIssue {
    int burst = 0;
    Spread cycles;
};

/// One configuration of bursts, measured `samples` times. Cycles are of the sender's SM clock.
struct BurstRow {
    BurstMode mode = BurstMode::kIsolated;
    std::string path;  ///< "st16", "bulk", "st4", "tma", "red_f32", ...
    Target target = Target::kRemote;
    bool both_directions = false;
    int producers = 0;  ///< SMs that store
    int warps = 0;      ///< per producer
    int destinations = 1;
    Addresses addresses = Addresses::kFresh;
    std::string beside =
        "nothing";             ///< what else ran on the SMs: "nothing", "mma", "memory", "shared"
    Bytes bytes_per_producer;  ///< per burst
    int bursts = 1;
    Cycles gap;  ///< computation between the bursts
    GapFrom gap_from = GapFrom::kProducer;
    std::optional<GigaHertz> clock;  ///< measured over the sample; absent where it was too short
    int samples = 0;
    bool marked = false;  ///< throttled or clock-shifted and still so after the retries
    std::vector<BurstIssue> issue;
    Spread total;                        ///< to the end of the last burst's issue
    std::optional<Spread> fence;         ///< to the end of a system-scope fence after it: drained
    std::optional<Nanoseconds> elapsed;  ///< the same span as `fence` on the global timer
    std::optional<Spread> posted;  ///< bulk paths: to the end of posting the first burst's copies
    std::optional<double> noise;   ///< robust deviation of the slowest's total, relative
    std::optional<double> beside_rate;  ///< of the work beside: speed while storing / before it
    int marked_samples = 0;             ///< taken under another clock, also those replaced since
};

/// One burst timed to the answer of a peer that read and checked every byte (a round trip).
struct VisibleRow {
    std::string path;
    int producers = 0;
    int warps = 0;
    Bytes bytes_per_producer;
    Fence fence = Fence::kOneThread;
    Addresses addresses = Addresses::kFresh;
    Cycles issue;
    Cycles fenced;
    Cycles echo;
    Nanoseconds echo_ns;
    std::int64_t stale_words = 0;
};

/// Issue time by SM id; absent where that SM did not store.
struct SmRow {
    std::string name;
    std::string path;
    int warps = 0;
    Bytes bytes_per_producer;
    std::vector<std::optional<Cycles>> issue;
};

/// When instruction i of warp 0 had been issued.
struct IssueCurve {
    std::string path;
    Target target = Target::kRemote;
    int producers = 0;
    int warps = 0;
    Bytes bytes_per_instruction;
    std::vector<std::pair<int, Cycles>> points;
};

/// A plain rate, for comparison with the stores.
struct RateRow {
    std::string engine;     ///< "copy_engine", "fill_kernel", "store_kernel", "remote_read", ...
    std::string direction;  ///< "write", "read", "both"
    Bytes bytes;
    BytesPerNanosecond rate;
    std::string counting;          ///< which bytes over which time
    std::optional<Bytes> counted;  ///< payload by the link's own counters over the same transfers
};

/// One cell of the ordering tests.
struct LitmusRow {
    std::string path;
    std::string fence;
    std::string load;                ///< "idle" or "loaded"
    bool formally_required = false;  ///< the memory model asks for at least this much
    std::int64_t trials = 0;
    std::int64_t stale = 0;
};

/// One burst of a user's own kernel, recorded by stamps.
struct UserBurst {
    int producer = 0;
    int destination = 0;
    Bytes bytes;
    Nanoseconds start;
    Cycles issue;
    std::optional<GigaHertz> clock;
};

/// A flag and its answer with no data: what an echo costs by itself.
struct FlagRoundTrip {
    Cycles cycles;
    Nanoseconds ns;
};

/// A measurement document.
struct Measurements {
    Provenance provenance;
    std::vector<BurstRow> bursts;
    std::vector<VisibleRow> visible;
    std::vector<SmRow> per_sm;
    std::vector<IssueCurve> curves;
    std::vector<RateRow> rates;
    std::vector<LitmusRow> litmus;
    std::vector<UserBurst> user_bursts;
    std::optional<FlagRoundTrip> flag_round_trip;
    std::vector<std::vector<int>> sm_groups;  ///< SM ids of each GPC, found by cluster launches
};

}  // namespace xstage
