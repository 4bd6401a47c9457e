#include "model_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <unordered_set>

namespace xstage::fabric::checker {
namespace {

using protocol::Action;
using protocol::Order;

constexpr int kMaxRanksHere = 3;
constexpr int kMaxAccesses = 160;
using Set = std::bitset<kMaxAccesses>;

enum class Kind { kStore, kAwait, kRead };
enum class Word { kPayload, kData, kCredit, kBarrier };

struct Access {
    Kind kind;
    int word;
    int value;
    Order order = Order::kPlain;
    bool bulk = false;
    Set after;  ///< accesses of the same rank that must have been performed
};

/// Straight-line accesses of one rank: the script with every program written out.
class Compiler {
  public:
    Compiler(const Scenario& scenario, const Protocol& protocol, int rank)
        : scenario_(scenario), protocol_(protocol), rank_(rank) {
        sent_.resize(scenario.buffers);
        received_.resize(scenario.buffers);
        granted_.resize(scenario.buffers);
        version_.resize(scenario.buffers);
    }

    std::vector<Access> compile() {
        for (const Item& item : scenario_.script) add(item);
        return std::move(accesses_);
    }

  private:
    int word(Word kind, int buffer, int owner, int writer) const {
        const int n = scenario_.ranks;
        return ((static_cast<int>(kind) * scenario_.buffers + buffer) * n + owner) * n + writer;
    }

    void add(const Item& item) {
        buffer_ = item.buffer;
        switch (item.phase) {
            case Phase::kBegin:
                add(protocol_.begin);
                break;
            case Phase::kPublish:
                add(protocol_.publish);
                break;
            case Phase::kAcquire:
                add(protocol_.acquire);
                if (protocol_.grant_before_reads) grant(Order::kRelease);
                break;
            case Phase::kBarrier:
                add(protocol_.barrier);
                break;
            case Phase::kStore:
                ++version_[buffer_];
                each_peer([&](int p) {
                    store(word(Word::kPayload, buffer_, p, rank_), version_[buffer_], Order::kPlain,
                          scenario_.bulk);
                });
                break;
            case Phase::kRead:
                each_peer([&](int p) {
                    append({Kind::kRead,
                            word(Word::kPayload, buffer_, rank_, p),
                            version_[buffer_],
                            Order::kPlain,
                            scenario_.bulk,
                            {}});
                });
                break;
            case Phase::kReplay:
                if (protocol_.counters_restart_at_replay) {
                    std::fill(sent_.begin(), sent_.end(), 0);
                    std::fill(received_.begin(), received_.end(), 0);
                }
                break;
        }
    }

    void add(const protocol::Program& program) {
        for (int i = 0; i < program.count; ++i) add(program.steps[i]);
    }

    void add(const protocol::Step& step) {
        switch (step.action) {
            case Action::kCountCall:
            case Action::kAnnounce:
                break;  // only name a disagreement; nothing is ordered by them
            case Action::kGrant:
                grant(step.order);
                break;
            case Action::kAwaitCredit:
                await(Word::kCredit, buffer_, sent_[buffer_], step.order);
                break;
            case Action::kProxyFence:
                fences_.push_back(accesses_.size());
                break;
            case Action::kCountSend:
                ++sent_[buffer_];
                break;
            case Action::kSignal:
                signal(Word::kData, buffer_, sent_[buffer_], step.order);
                break;
            case Action::kCountReceive:
                ++received_[buffer_];
                break;
            case Action::kAwaitData:
                await(Word::kData, buffer_, received_[buffer_], step.order);
                break;
            case Action::kCountBarrier:
                ++barrier_;
                break;
            case Action::kSignalBarrier:
                signal(Word::kBarrier, 0, barrier_, step.order);
                break;
            case Action::kAwaitBarrier:
                await(Word::kBarrier, 0, barrier_, step.order);
                break;
        }
    }

    template <class F>
    void each_peer(F&& f) {
        for (int p = 0; p < scenario_.ranks; ++p)
            if (p != rank_) f(p);
    }

    void grant(Order order) {
        for (int b = 0; b < scenario_.buffers; ++b) {
            if (granted_[b] == received_[b]) continue;  // the same value again changes no state
            granted_[b] = received_[b];
            signal(Word::kCredit, b, received_[b], order);
        }
    }

    void signal(Word kind, int buffer, int value, Order order) {
        each_peer([&](int p) { store(word(kind, buffer, p, rank_), value, order, false); });
    }

    void store(int at, int value, Order order, bool bulk) {
        append({Kind::kStore, at, value, order, bulk, {}});
    }

    void await(Word kind, int buffer, int value, Order order) {
        each_peer([&](int p) {
            append({Kind::kAwait, word(kind, buffer, rank_, p), value, order, false, {}});
        });
    }

    bool fenced_since(std::size_t access) const {
        return !fences_.empty() && fences_.back() > access;
    }

    void append(Access access) {
        for (std::size_t j = 0; j < accesses_.size(); ++j) {
            const Access& earlier = accesses_[j];
            const bool same_word = earlier.word == access.word;
            const bool unfenced_bulk_store =
                earlier.bulk && earlier.kind == Kind::kStore && !fenced_since(j);
            const bool released = access.order == Order::kRelease && !unfenced_bulk_store;
            const bool acquired =
                earlier.order == Order::kAcquire && (!access.bulk || fenced_since(j));
            if (same_word || released || acquired) access.after.set(j);
        }
        accesses_.push_back(access);
    }

    const Scenario& scenario_;
    const Protocol& protocol_;
    int rank_;
    int buffer_ = 0;
    int barrier_ = 0;
    std::vector<int> sent_, received_, granted_, version_;
    std::vector<std::size_t> fences_;  ///< number of accesses before each proxy fence
    std::vector<Access> accesses_;
};

struct State {
    std::array<Set, kMaxRanksHere> done;
    bool operator==(const State&) const = default;
};

struct Hash {
    std::size_t operator()(const State& s) const {
        std::size_t h = 0;
        for (const Set& set : s.done) h = h * 0x9e3779b97f4a7c15u + std::hash<Set>{}(set);
        return h;
    }
};

class Search {
  public:
    Search(const Scenario& scenario, const Protocol& protocol) : scenario_(scenario) {
        for (int r = 0; r < scenario.ranks; ++r) {
            ranks_.push_back(Compiler(scenario, protocol, r).compile());
            if (ranks_.back().size() > kMaxAccesses) throw std::length_error("script too long");
        }
    }

    Result run() {
        Result result;
        std::vector<State> open{State{}};
        seen_.insert(State{});
        while (!open.empty()) {
            const State state = open.back();
            open.pop_back();
            if (auto fault = expand(state, open)) {
                result.fault = fault;
                break;
            }
        }
        result.states = seen_.size();
        return result;
    }

  private:
    /// What a word holds: the last store to it that has been performed.
    int value_of(const State& state, int word) const {
        int value = 0;
        for (std::size_t r = 0; r < ranks_.size(); ++r)
            for (std::size_t i = 0; i < ranks_[r].size(); ++i) {
                const Access& a = ranks_[r][i];
                if (a.kind == Kind::kStore && a.word == word && state.done[r][i]) value = a.value;
            }
        return value;
    }

    std::optional<std::string> expand(const State& state, std::vector<State>& open) {
        bool moved = false;
        bool finished = true;
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
            for (std::size_t i = 0; i < ranks_[r].size(); ++i) {
                if (state.done[r][i]) continue;
                finished = false;
                const Access& a = ranks_[r][i];
                if ((a.after & ~state.done[r]).any()) continue;
                if (a.kind != Kind::kStore) {
                    const int value = value_of(state, a.word);
                    if (a.kind == Kind::kAwait && value < a.value) continue;
                    if (a.kind == Kind::kRead && value != a.value)
                        return fmt::format("rank {} reads {} data: version {}, its signal said {}",
                                           r, value < a.value ? "stale" : "overwritten", value,
                                           a.value);
                }
                moved = true;
                State next = state;
                next.done[r].set(i);
                if (seen_.insert(next).second) open.push_back(next);
            }
        }
        if (!moved && !finished) return "deadlock";
        return std::nullopt;
    }

    const Scenario& scenario_;
    std::vector<std::vector<Access>> ranks_;
    std::unordered_set<State, Hash> seen_;
};

protocol::Program without(protocol::Program program, int step) {
    for (int i = step; i + 1 < program.count; ++i) program.steps[i] = program.steps[i + 1];
    --program.count;
    return program;
}

const char* name_of(Action action) {
    switch (action) {
        case Action::kCountCall:
            return "count_call";
        case Action::kGrant:
            return "grant";
        case Action::kAnnounce:
            return "announce";
        case Action::kAwaitCredit:
            return "await_credit";
        case Action::kProxyFence:
            return "proxy_fence";
        case Action::kCountSend:
            return "count_send";
        case Action::kSignal:
            return "signal";
        case Action::kCountReceive:
            return "count_receive";
        case Action::kAwaitData:
            return "await_data";
        case Action::kCountBarrier:
            return "count_barrier";
        case Action::kSignalBarrier:
            return "signal_barrier";
        case Action::kAwaitBarrier:
            return "await_barrier";
    }
    return "?";
}

}  // namespace

Result check(const Scenario& scenario, const Protocol& protocol) {
    return Search(scenario, protocol).run();
}

std::vector<Item> calls(const std::vector<int>& buffers) {
    std::vector<Item> script;
    for (int b : buffers)
        for (Phase phase :
             {Phase::kBegin, Phase::kStore, Phase::kPublish, Phase::kAcquire, Phase::kRead})
            script.push_back({phase, b});
    return script;
}

std::vector<Mutant> mutants() {
    std::vector<Mutant> all;
    const std::pair<const char*, protocol::Program Protocol::*> programs[] = {
        {"begin", &Protocol::begin},
        {"publish", &Protocol::publish},
        {"acquire", &Protocol::acquire},
        {"barrier", &Protocol::barrier},
    };
    for (const auto& [name, member] : programs) {
        const protocol::Program whole = Protocol{}.*member;
        for (int i = 0; i < whole.count; ++i) {
            const protocol::Step& step = whole.steps[i];
            // These two only let ranks name a disagreement early; their test is of another kind.
            if (step.action == Action::kCountCall || step.action == Action::kAnnounce) continue;
            Mutant removed{fmt::format("{} without {} (step {})", name, name_of(step.action), i),
                           {}};
            removed.protocol.*member = without(whole, i);
            all.push_back(removed);
            if (step.order == Order::kPlain) continue;
            Mutant plain{fmt::format("{} with plain {}", name, name_of(step.action)), {}};
            (plain.protocol.*member).steps[i].order = Order::kPlain;
            all.push_back(plain);
        }
    }
    Mutant host_counter{"counters that restart with each replay", {}};
    host_counter.protocol.counters_restart_at_replay = true;
    all.push_back(host_counter);
    Mutant early{"credit granted before the reads", {}};
    early.protocol.grant_before_reads = true;
    all.push_back(early);
    return all;
}

}  // namespace xstage::fabric::checker
