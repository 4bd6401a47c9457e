#pragma once

#include <queue>
#include <span>
#include <vector>

#include "sim/node.hpp"
#include "sim/result.hpp"
#include "sim/workload.hpp"

namespace xstage::sim {

/// Below this a queue counts as empty; at 1000 bytes/ns it is 1e-7 ns.
inline constexpr double kTinyBytes = 1e-4;

/// Bytes that arrive at each GPU, by slice of time: what the ingress links are checked against.
class Arrivals {
  public:
    Arrivals() = default;
    Arrivals(int gpus, double slice_ns) : gpus_(gpus), slice_ns_(slice_ns) {}

    /// Spreads `bytes` evenly over [from, to].
    void add(const Route& route, double bytes, double from_ns, double to_ns);
    double at(int slice, int gpu) const;
    int slices() const { return gpus_ == 0 ? 0 : static_cast<int>(bytes_.size()) / gpus_; }

  private:
    int gpus_ = 0;
    double slice_ns_ = 0;
    std::vector<float> bytes_;  // [slice][gpu]; float holds a slice's bytes to 1e-7
};

/// One GPU: producers that compute and store, their rooms, and the links out. Exact and fluid
/// between events: rates are constant from one event to the next, so cost goes with the number of
/// bursts and not with their bytes.
class GpuEngine {
  public:
    struct Options {
        bool record = false;  ///< spans and occupancy
        double slice_ns = 0;  ///< of arrivals; 0: not kept
        int gpus = 2;
    };

    GpuEngine(const Node& node, int rank, Program& program, const Options& options);

    /// Advances to `until_ns`, or to the end of the program. Throws kBadInput where every producer
    /// waits for a gate that nothing will open.
    void run(double until_ns);
    bool done() const { return live_ == 0 && active_.empty() && timers_.empty(); }
    double now_ns() const { return now_; }

    /// Rate at which the backlog now bound for each GPU would leave if nothing throttled it.
    void demand(std::vector<double>& per_gpu) const;
    /// Drain rate of one producer when all that have something to drain share the link.
    double fair_rate() const;
    /// Limits, per destination, the drain rate of each producer whose oldest burst goes there.
    void throttle(const std::vector<double>& per_producer);

    /// Bytes drained so far along each of the program's routes.
    const std::vector<double>& route_bytes() const { return route_bytes_; }
    const Arrivals& arrivals() const { return arrivals_; }
    long events() const { return events_; }
    /// Moves the results out, once done().
    RankResult take_result();
    std::vector<Span> take_spans() { return std::move(spans_); }

  private:
    enum class Compute : std::uint8_t { kDone, kParked, kHead, kHeld, kBody };
    enum class Store : std::uint8_t { kFree, kLocal, kIssuing };

    struct Burst {  // accepted in part or whole, not yet drained
        double bytes, drain_start, cost;
        int route;
        Channel channel;
        bool last;  // of its step
        Step step;
        std::size_t span;
    };

    /// What the fluid part walks over at every event; apart from Producer, so that all of a GPU
    /// stays in the first cache.
    struct Flow {
        double queued = 0;  ///< bytes accepted, not drained
        double left = 0;    ///< bytes of the part still to issue
        double rate = 0;    ///< issue rate without backpressure
        double in = 0, out = 0;
        double cap = 0;         ///< drain rate limit of the oldest burst
        double weight = 1;      ///< within the group, for the oldest burst
        double cost = 1;        ///< link time per byte of the oldest burst
        double front_left = 0;  ///< of the oldest burst, not drained
        int group = 0;
        int pending = 0;  ///< bursts not drained
        Channel channel = Channel::kLink;
        bool issuing = false, helper = false;
        bool settled = false;  ///< of share()
        bool waits = false;    ///< for the shared room

        double load() const { return queued * cost; }
        bool front_partial() const { return issuing && pending == 1; }
    };

    struct Producer {
        Compute compute = Compute::kDone;
        Store store = Store::kFree;
        bool active = false;   // in active_: issuing, or has a backlog
        std::size_t span = 0;  // of `storing`
        int place = 0, members = 1;
        long turn = 0;                   // of arbitration
        double since_turn = 0;           // bytes drained in it
        int part = 0;                    // of the step in the store engine
        long claimed = 0, accepted = 0;  // steps
        Step next, storing;              // step in the compute engine, and in the store engine
        double compute_start = 0, storing_start = 0, issue_start = 0, since = 0, ideal_ns = 0;
        std::vector<Burst> pending;
        std::size_t front = 0;  // of pending
        ProducerResult result;
    };

    struct Pool {  // the shared room of one group
        double used = 0, growth = 0, released = 0;
        int issuers = 0, blocked = 0;
        bool full = false;
    };

    struct Share {  // of a rate: what is wanted, and what is granted (kUnlimited: all of it)
        double demand = 0, weight = 0, grant = 0;
        bool asks = false;
    };

    struct Timer {
        double time;
        long sequence;
        int producer;
        bool local;  // end of a local store, else of (part of) a computation
        bool operator>(const Timer& other) const {
            return time != other.time ? time > other.time : sequence > other.sequence;
        }
    };

    void claim(int p);
    void begin(int p);
    bool must_wait(const Producer& producer) const;
    void head_over(int p);
    void body(int p);
    void compute_over(int p);
    void next_part(int p);
    void accept(int p);
    void open_gate(int gate);
    void set_timer(double time, int p, bool local);

    void find_rates();
    void share(Channel channel, double capacity);
    static void fill(std::span<Share> shares, double capacity);
    void apply_room();
    double step_length() const;
    void advance(double dt);
    void settle();
    void pop_front(int p);
    void new_front(int p);
    void activate(int p);

    Node node_;
    int rank_;
    Program& program_;
    Options options_;
    double now_ = 0;
    bool dirty_ = true;  // rates must be found again
    int live_ = 0;       // producers whose compute engine is not done
    long events_ = 0, sequence_ = 0;
    double queued_ = 0, visible_ = 0;
    std::vector<Producer> producers_;
    std::vector<Flow> flows_;
    std::vector<int> active_;
    std::vector<Pool> pools_;
    std::vector<double> route_bytes_;
    std::vector<double> throttle_;  // per destination; empty: none
    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
    std::vector<std::vector<int>> parked_;
    std::vector<Share> halves_, groups_;  // of the link; the last of each is the helpers'
    std::vector<double> group_weight_;
    std::vector<std::vector<double>> luck_;  // of the members of each group
    Arrivals arrivals_;
    std::vector<Span> spans_;
    RankResult result_;
};

}  // namespace xstage::sim
