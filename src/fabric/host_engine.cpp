#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "fabric/engine.hpp"

namespace xstage::fabric {
namespace {

using protocol::Order;
using Word = std::uint64_t;

std::memory_order load_order(Order order) {
    return order == Order::kAcquire ? std::memory_order_acquire : std::memory_order_relaxed;
}
std::memory_order store_order(Order order) {
    return order == Order::kRelease ? std::memory_order_release : std::memory_order_relaxed;
}

Word load(const Word& word, Order order) {
    return std::atomic_ref<Word>(const_cast<Word&>(word)).load(load_order(order));
}
void store(Word& word, Word value, Order order) {
    std::atomic_ref<Word>(word).store(value, store_order(order));
}

class HostEngine final : public Engine {
  public:
    HostEngine(const Blocks& blocks, int rank, int world, std::chrono::nanoseconds timeout,
               bool trap, std::function<bool(int)> peer_left)
        : blocks_(blocks),
          rank_(rank),
          world_(world),
          timeout_(timeout),
          trap_(trap),
          peer_left_(std::move(peer_left)) {}

    void barrier(const Streams&) override {
        CallShape call;
        call.signature = kBarrierSignature;
        run(protocol::barrier_program(), call);
    }
    void begin(const CallShape& call, const Streams&) override {
        run(protocol::begin_program(), call);
    }
    void publish(const CallShape& call, const Streams&) override {
        run(protocol::publish_program(), call);
    }
    void acquire(const CallShape& call, const std::vector<Poison>& outputs,
                 const Streams&) override {
        if (run(protocol::acquire_program(), call)) return;
        for (const Poison& p : outputs) std::memset(p.data, 0xff, p.bytes);
    }

    void exchange(const CallShape& call, const std::vector<Poison>& outputs,
                  const Streams& streams) override {
        publish(call, streams);
        acquire(call, outputs, streams);
    }
    void hand_over(const CallShape& call, const std::vector<Poison>& outputs, const CallShape& next,
                   const Streams& streams) override {
        publish(call, streams);
        begin(next, streams);
        acquire(call, outputs, streams);
    }

    void send(const CallShape& call, const PutTable& table, const Streams&) override {
        if (state_.broken != 0) return;
        const Word value = protocol::pack(state_.sent[call.channel] + 1, call.signature);
        each_chunk(table, [&](const PutEntry& e, std::int64_t chunk) {
            const std::size_t at = packed_offset(e, chunk);
            for (std::int64_t r = 0; r < e.rows_of(chunk); ++r)
                std::memcpy(e.packed + at + r * e.part_bytes, row(e, chunk, r), e.part_bytes);
            std::memcpy(e.target + at, e.packed + at, e.rows_of(chunk) * e.part_bytes);
            store(e.signals[chunk], value, Order::kRelease);
            return true;
        });
    }

    void receive(const CallShape& call, const PutTable& table, const Streams&) override {
        if (state_.broken != 0) return;
        call_ = call;
        const Word epoch = state_.received[call.channel] + 1;
        const auto deadline = std::chrono::steady_clock::now() + timeout_;
        each_chunk(table, [&](const PutEntry& e, std::int64_t chunk) {
            const Word& signal = e.signals[chunk];
            if (!await_word(SignalKind::kData, signal, e.peer, epoch, Order::kAcquire, deadline))
                return false;
            const std::size_t at = packed_offset(e, chunk);
            for (std::int64_t r = 0; r < e.rows_of(chunk); ++r)
                std::memcpy(row(e, chunk, r), e.packed + at + r * e.part_bytes, e.part_bytes);
            return true;
        });
    }

    void put(int, int, std::byte* target, bool, const std::byte* source, std::size_t bytes,
             const Streams&) override {
        if (state_.broken == 0) std::memmove(target, source, bytes);
    }

    std::optional<FailureReport> failure() const override {
        if (state_.broken == 0) return std::nullopt;
        return report_;
    }
    const device::FabricGroup* device_group(int) const override { return nullptr; }
    void synchronize(const Streams&) const override {}

    void reset_channels(int first, int count) override {
        for (int c = first; c < first + count; ++c) {
            state_.sent[c] = state_.received[c] = 0;
            each_peer([&](int p) {
                store(lane(p).data[c], 0, Order::kPlain);
                store(lane(p).credit[c], 0, Order::kPlain);
            });
        }
    }

    void store_self_test() override {
        each_peer([&](int p) {
            store(blocks_[p]->from[rank_].self_test[0], self_test_pattern(rank_, p),
                  Order::kRelease);
        });
    }
    std::vector<int> missing_self_tests() override {
        std::vector<int> missing;
        each_peer([&](int p) {
            if (load(lane(p).self_test[0], Order::kAcquire) != self_test_pattern(p, rank_))
                missing.push_back(p);
        });
        return missing;
    }

    // The port of protocol::run.
    void count_call() {
        ++state_.call;
        state_.chain = protocol::mix(state_.chain, protocol::mix(call_.signature, call_.channel));
    }
    void grant(Order order) {
        each_peer([&](int p) {
            for (std::uint32_t c = call_.first_channel; c < call_.first_channel + call_.channels;
                 ++c)
                store(blocks_[p]->from[rank_].credit[c], protocol::pack(state_.received[c], 0),
                      order);
        });
    }
    void announce(Order order) {
        each_peer([&](int p) {
            store(blocks_[p]->from[rank_].announce[state_.call % kAnnounceSlots], announcement(),
                  order);
        });
    }
    bool await_credit(Order order) {
        return await(SignalKind::kCredit, state_.sent[call_.channel], order);
    }
    void proxy_fence() {}
    void count_send() { ++state_.sent[call_.channel]; }
    void signal(Order order) {
        each_peer([&](int p) {
            store(blocks_[p]->from[rank_].data[call_.channel],
                  protocol::pack(state_.sent[call_.channel], call_.signature), order);
        });
    }
    void count_receive() { ++state_.received[call_.channel]; }
    bool await_data(Order order) {
        return await(SignalKind::kData, state_.received[call_.channel], order);
    }
    void count_barrier() { ++state_.barrier; }
    void signal_barrier(Order order) {
        each_peer([&](int p) {
            store(blocks_[p]->from[rank_].barrier, protocol::pack(state_.barrier, state_.chain),
                  order);
        });
    }
    bool await_barrier(Order order) { return await(SignalKind::kBarrier, state_.barrier, order); }

  private:
    bool run(const protocol::Program& program, const CallShape& call) {
        if (state_.broken != 0) return false;
        call_ = call;
        return protocol::run(program, *this);
    }

    static std::size_t packed_offset(const PutEntry& e, std::int64_t chunk) {
        return static_cast<std::size_t>(chunk * e.rows_per_chunk) * e.part_bytes;
    }
    static std::byte* row(const PutEntry& e, std::int64_t chunk, std::int64_t r) {
        return e.rows_at + static_cast<std::size_t>(chunk * e.rows_per_chunk + r) * e.row_stride;
    }
    /// Until f says no.
    template <class F>
    static void each_chunk(const PutTable& table, F&& f) {
        for (std::int64_t i = 0; i < table.items(); ++i) {
            const PutEntry& e = table.entry[i % table.entries];
            if (i / table.entries < e.chunks() && !f(e, i / table.entries)) return;
        }
    }

    template <class F>
    void each_peer(F&& f) {
        for (int p = 0; p < world_; ++p)
            if (p != rank_) f(p);
    }

    Lane& lane(int from) { return blocks_[rank_]->from[from]; }
    Word announcement() const { return protocol::pack(state_.call, state_.chain); }

    const Word& word(SignalKind kind, int from) {
        switch (kind) {
            case SignalKind::kCredit:
                return lane(from).credit[call_.channel];
            case SignalKind::kData:
                return lane(from).data[call_.channel];
            default:
                return lane(from).barrier;
        }
    }

    /// The tag that a peer's word of this very epoch must carry.
    Word tag(SignalKind kind) const {
        const Word value = kind == SignalKind::kBarrier ? state_.chain : call_.signature;
        return kind == SignalKind::kCredit ? 0 : value & protocol::kTagMask;
    }

    bool await(SignalKind kind, Word epoch, Order order) {
        const auto deadline = std::chrono::steady_clock::now() + timeout_;
        for (int p = 0; p < world_; ++p)
            if (p != rank_ && !await_word(kind, word(kind, p), p, epoch, order, deadline))
                return false;
        return true;
    }

    bool await_word(SignalKind kind, const Word& word, int p, Word epoch, Order order,
                    std::chrono::steady_clock::time_point deadline) {
        for (unsigned spins = 0;; ++spins) {
            const Word seen = load(word, order);
            if (protocol::epoch_of(seen) >= epoch) {
                if (kind == SignalKind::kCredit || protocol::epoch_of(seen) != epoch ||
                    protocol::tag_of(seen) == tag(kind))
                    return true;
                return fail({FailureKind::kDisagreement, kind, channel(), bit(p), epoch}, seen);
            }
            if (spins % 64 != 63) continue;
            if (!still_well(kind, word, epoch, p, deadline)) return false;
            std::this_thread::yield();
        }
    }

    /// The slow half of a wait: is there still hope that the word will come?
    bool still_well(SignalKind kind, const Word& awaited, Word epoch, int p,
                    std::chrono::steady_clock::time_point deadline) {
        // A break that is known comes first: whoever is silent for another reason may also be
        // elsewhere.
        for (int q = 0; q < world_; ++q)
            if (const Word abort = load(lane(q).abort, Order::kAcquire)) return adopt(abort);
        for (int q = 0; q < world_; ++q) {
            if (q == rank_) continue;
            const Word announced =
                load(lane(q).announce[state_.call % kAnnounceSlots], Order::kPlain);
            if (protocol::epoch_of(announced) == protocol::epoch_of(announcement()) &&
                announced != announcement())
                return fail({FailureKind::kDisagreement, kind, channel(), bit(q), epoch},
                            announced);
        }
        if (peer_left_(p)) {
            // It may have signalled on its way out.
            const Word seen = load(awaited, Order::kAcquire);
            if (protocol::epoch_of(seen) >= epoch) return true;
            if (const Word abort = load(lane(p).abort, Order::kAcquire)) return adopt(abort);
            return fail({FailureKind::kPeerLeft, kind, channel(), bit(p), epoch}, seen);
        }
        if (std::chrono::steady_clock::now() < deadline) return true;
        const Word seen = load(awaited, Order::kAcquire);
        if (protocol::epoch_of(seen) >= epoch) return true;
        std::uint16_t missing = bit(p);
        each_peer([&](int q) {
            if (protocol::epoch_of(load(word(kind, q), Order::kPlain)) < epoch) missing |= bit(q);
        });
        return fail({FailureKind::kTimeout, kind, channel(), missing, epoch}, seen);
    }

    std::uint8_t channel() const { return static_cast<std::uint8_t>(call_.channel); }
    static std::uint16_t bit(int rank) { return static_cast<std::uint16_t>(1u << rank); }

    bool adopt(Word failure) {
        report_ = {failure, static_cast<Word>(rank_), 0};
        state_.broken = failure;
        return false;
    }

    bool fail(const Failure& failure, Word seen) {
        adopt(failure.encode());
        report_.seen = seen;
        each_peer([&](int p) {
            store(blocks_[p]->from[rank_].abort, failure.encode(), Order::kRelease);
        });
        if (trap_) std::abort();
        return false;
    }

    Blocks blocks_;
    int rank_;
    int world_;
    std::chrono::nanoseconds timeout_;
    bool trap_;
    std::function<bool(int)> peer_left_;
    RankState state_{};
    FailureReport report_{};
    CallShape call_;
};

std::string rank_list(std::uint16_t ranks) {
    std::string list;
    for (int r = 0; r < kMaxRanks; ++r)
        if (ranks >> r & 1) list += fmt::format("{}{}", list.empty() ? "" : ", ", r);
    return list;
}

}  // namespace

std::unique_ptr<Engine> make_host_engine(const Blocks& blocks, int rank, int world,
                                         std::chrono::nanoseconds wait_timeout, bool trap,
                                         std::function<bool(int)> peer_left) {
    return std::make_unique<HostEngine>(blocks, rank, world, wait_timeout, trap,
                                        std::move(peer_left));
}

std::string describe(const Failure& failure, std::chrono::nanoseconds wait_timeout) {
    std::string what;
    switch (failure.signal) {
        case SignalKind::kCredit:
            what = fmt::format("the credit of buffer {}", failure.channel);
            break;
        case SignalKind::kData:
            what = fmt::format("the data of buffer {}", failure.channel);
            break;
        case SignalKind::kBarrier:
            what = "the barrier";
            break;
        case SignalKind::kSetUp:
            what = "set-up";
            break;
    }
    const std::string who = "rank " + rank_list(failure.ranks);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(wait_timeout).count();
    switch (failure.kind) {
        case FailureKind::kNone:
            return "no failure";
        case FailureKind::kTimeout:
            return fmt::format("{}: no signal for {}, epoch {}, within {} ms", who, what,
                               failure.epoch, ms);
        case FailureKind::kDisagreement:
            return fmt::format("{}: is in another call, or describes it otherwise ({}, epoch {})",
                               who, what, failure.epoch);
        case FailureKind::kPeerLeft:
            return fmt::format(
                "{}: its process ended or left the group before it signalled {}, epoch {}", who,
                what, failure.epoch);
    }
    return "unknown failure";
}

}  // namespace xstage::fabric
