#pragma once

// Exhaustive search over the interleavings of the signal protocol
// (include/xstage/fabric/protocol.hpp).
//
// Memory model: every access of a rank may be performed in any order that the protocol's orderings
// do not forbid. A release store comes after all earlier accesses of its rank; all later accesses
// come after an acquiring wait; accesses to one word stay in order; bulk copies (the async proxy)
// are ordered by a release or an acquire only across a proxy fence, except that a bulk read is
// complete when its rank goes on. Control dependencies order nothing. So a store may sit in a
// buffer past any plain signal, and a load may be taken before any plain wait.
//
// Each word has one writer and a rank's control flow is fixed, so a state is just which accesses
// have been performed, and the search visits every reachable set of them once.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xstage/fabric/protocol.hpp"

namespace xstage::fabric::checker {

enum class Phase { kBegin, kStore, kPublish, kAcquire, kRead, kBarrier, kReplay };

struct Item {
    Phase phase;
    int buffer = 0;
};

struct Protocol {
    protocol::Program begin = protocol::begin_program();
    protocol::Program publish = protocol::publish_program();
    protocol::Program acquire = protocol::acquire_program();
    protocol::Program barrier = protocol::barrier_program();
    bool counters_restart_at_replay = false;  ///< what a counter on the host would do in a graph
    bool grant_before_reads = false;          ///< credits given as soon as the data has arrived
};

struct Scenario {
    std::string name;
    int ranks;
    int buffers;
    bool bulk;  ///< payload is stored and read by bulk copies
    std::vector<Item> script;
};

struct Result {
    std::optional<std::string>
        fault;  ///< stale or overwritten data, or a deadlock; nothing if none
    std::uint64_t states = 0;
};

Result check(const Scenario& scenario, const Protocol& protocol);

/// One full call on each of these buffers, in this order.
std::vector<Item> calls(const std::vector<int>& buffers);

struct Mutant {
    std::string name;
    Protocol protocol;
};

/// The protocol with one fence, wait, count, signal or ordering taken out, for each of them in
/// turn.
std::vector<Mutant> mutants();

}  // namespace xstage::fabric::checker
