#pragma once

// What the probe asks of a node. The CUDA implementation stands in kernels/probe; tests use a fake.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "xstage/measurement.hpp"

namespace xstage::probe {

enum class Beside { kNothing, kMma, kMemory, kShared };

/// One configuration of the store loop.
struct StoreConfig {
    BurstMode mode = BurstMode::kIsolated;
    std::string path = "st16";
    Target target = Target::kRemote;
    bool both_directions = false;
    int producers = 1;
    int warps = 4;
    int destinations = 1;
    Addresses addresses = Addresses::kFresh;
    Beside beside = Beside::kNothing;
    std::int64_t bytes = 0;  ///< per producer and burst
    int bursts = 1;
    std::int64_t gap_cycles = 0;
    GapFrom gap_from = GapFrom::kProducer;
    std::vector<bool> sm_mask = {};  ///< by SM id: those that store; empty for all
};

/// One timed round. A worker is a warp, or for the bulk paths the CTA's storing thread.
struct StoreSample {
    std::vector<std::vector<double>> issue;  ///< cycles, [burst][worker]
    std::vector<std::vector<double>>
        posted;                 ///< bulk paths: to the end of posting, [burst][worker]
    std::vector<double> total;  ///< cycles from the start, [worker]
    std::vector<double> fence;  ///< cycles from the start, [worker]
    std::vector<int> sm;        ///< SM id, [worker]
    double elapsed_ns = 0;      ///< median CTA, the span of `fence`
    double window_cycles = 0;   ///< a longer span about the sample, on both clocks
    double window_ns = 0;
    double beside_quiet = 0;  ///< iterations per 1000 cycles of the work beside, before the burst
    double beside_storing = 0;
};

struct VisibleConfig {
    std::string path = "st16";
    int producers = 1;
    int warps = 4;
    std::int64_t bytes = 0;  ///< per producer; 0 is the bare flag
    Fence fence = Fence::kOneThread;
    Addresses addresses = Addresses::kFresh;
};

struct VisibleSample {
    double issue = 0;   ///< cycles, median CTA
    double fenced = 0;  ///< cycles, median CTA
    double echo = 0;    ///< cycles from the start to the answer, on the flag raiser's SM
    double echo_ns = 0;
    double window_cycles = 0;
    double window_ns = 0;
    std::int64_t stale_words = 0;
};

struct RateConfig {
    std::string engine;  ///< copy_engine, fill_kernel, store_kernel, store_loop, remote_read
    std::string direction = "write";
    Target target = Target::kRemote;
    std::int64_t bytes = 0;
};

struct RateSample {
    double ns = 0;
    std::int64_t bytes = 0;           ///< payload moved in that time
    std::int64_t counted_bytes = -1;  ///< by the link's own counters; -1 where unreadable
};

enum class LitmusFence {
    kNothing,
    kWaitRead,
    kWaitAll,
    kFenceGpu,
    kReleaseSys,
    kNextKernel,      ///< the kernel ends with wait_group.read; the next in the stream releases
    kNextKernelPdl,   ///< programmatic launch, the next kernel waits for its prerequisite
    kNextKernelEarly  ///< programmatic launch, the next kernel does not wait
};

struct LitmusConfig {
    std::string path = "st16";
    LitmusFence fence = LitmusFence::kNothing;
    bool loaded = false;
    std::int64_t trials = 0;
};

struct LitmusCount {
    std::int64_t trials = 0;  ///< messages whose flag was seen and whose bytes were then read
    std::int64_t stale_messages = 0;
    std::int64_t stale_words = 0;
};

struct PairCheck {
    int from = 0;
    int to = 0;
    bool ok = false;
    std::string reason;  ///< why not
};

/// What the machine says about itself at one moment.
struct ThrottleState {
    bool known = false;
    bool throttled = false;
    std::string reason;
};

struct NodeInfo {
    std::vector<Gpu> gpus;
    std::string hostname;
    std::string driver;
    std::string cuda;
    std::string topology;
    double line_rate = 0;  ///< GB/s per direction; 0 unknown
    std::vector<std::string> warnings;
};

/// A node under measurement. Every call is bounded in time; a wait that ran out throws
/// Error(kTimedOut) naming who was missing, a device fault throws Error(kEnvironment).
class Node {
  public:
    virtual ~Node() = default;

    virtual NodeInfo info() const = 0;
    virtual std::vector<PairCheck> self_test() = 0;
    /// Measure with stores from `from` to `to`. Called once, before the methods below.
    virtual void use_pair(int from, int to) = 0;
    virtual void warm_up(double milliseconds) = 0;
    virtual ThrottleState throttle() = 0;

    virtual bool supports(const StoreConfig& config, std::string& why_not) const = 0;
    /// `samples` rounds after one that is thrown away.
    virtual std::vector<StoreSample> store(const StoreConfig& config, int samples) = 0;
    virtual std::vector<VisibleSample> visible(const VisibleConfig& config, int samples) = 0;
    virtual RateSample rate(const RateConfig& config) = 0;
    virtual LitmusCount litmus(const LitmusConfig& config) = 0;
    /// SM ids that share a GPC, by cluster launches; empty where that cannot be told.
    virtual std::vector<std::vector<int>> sm_groups() = 0;
};

struct NodeOptions {
    bool loopback = false;  ///< stores go to this GPU's own memory
    int from = 0;
    int to = 1;
};

/// The node of this machine. Throws Error(kUnsupported) without a usable GPU (or, unless loopback,
/// two), Error(kEnvironment) where the driver or the fabric is not ready.
std::unique_ptr<Node> open_cuda_node(const NodeOptions& options);

}  // namespace xstage::probe
