#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/put_table.hpp"
#include "xstage/fabric.hpp"

namespace xstage::fabric {

/// Output to spoil when the group is broken. All bits set is a NaN in every floating-point format.
struct Poison {
    int rank;
    std::byte* data;
    std::size_t bytes;
};

/// Runs the programs of protocol.hpp for this process's ranks.
class Engine {
  public:
    virtual ~Engine() = default;

    virtual void barrier(const Streams& streams) = 0;
    virtual void begin(const CallShape& call, const Streams& streams) = 0;
    virtual void publish(const CallShape& call, const Streams& streams) = 0;
    virtual void acquire(const CallShape& call, const std::vector<Poison>& outputs,
                         const Streams& streams) = 0;

    virtual void exchange(const CallShape& call, const std::vector<Poison>& outputs,
                          const Streams& streams) = 0;

    /// publish(call), begin(next), acquire(call).
    virtual void hand_over(const CallShape& call, const std::vector<Poison>& outputs,
                           const CallShape& next, const Streams& streams) = 0;

    /// Before publish: packs rows and sends them to the ranks of other nodes. Before acquire: waits
    /// for theirs and unpacks them. Both count with the call's channel, but leave the counting to
    /// publish and acquire.
    virtual void send(const CallShape& call, const PutTable& table, const Streams& streams) = 0;
    virtual void receive(const CallShape& call, const PutTable& table, const Streams& streams) = 0;
    /// `target` is mapped here or is what the heap names as that rank's (SymmetricHeap::target).
    virtual void put(int from, int to, std::byte* target, bool mapped, const std::byte* source,
                     std::size_t bytes, const Streams& streams) = 0;

    virtual std::optional<FailureReport> failure() const = 0;
    virtual const device::FabricGroup* device_group(int device_index) const = 0;
    virtual void synchronize(const Streams& streams) const = 0;

    /// Starts channels afresh, here. The ranks must meet before and after: what an earlier tensor
    /// left unread in them would otherwise be taken for a signal of the new one.
    virtual void reset_channels(int first, int count) = 0;

    /// Set-up: stores a pattern to every peer through the mapped pointers, and later says from
    /// which ranks it did not arrive here.
    virtual void store_self_test() = 0;
    virtual std::vector<int> missing_self_tests() = 0;
};

/// Blocks of all ranks as this process maps them.
using Blocks = std::array<SignalBlock*, kMaxRanks>;

std::unique_ptr<Engine> make_host_engine(const Blocks& blocks, int rank, int world,
                                         std::chrono::nanoseconds wait_timeout, bool trap,
                                         std::function<bool(int)> peer_left);

/// One line for a user: who is missing, for what, or who disagrees.
std::string describe(const Failure& failure, std::chrono::nanoseconds wait_timeout);

}  // namespace xstage::fabric
