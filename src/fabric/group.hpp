#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/cuda_backend.hpp"
#include "fabric/engine.hpp"
#include "fabric/heap.hpp"
#include "fabric/memory.hpp"
#include "fabric/rendezvous.hpp"
#include "xstage/fabric.hpp"

namespace xstage::fabric {

/// Reserved address space and the memory mapped into it; both go with it.
class Range {
  public:
    Range() = default;
    Range(std::shared_ptr<Memory> memory, std::size_t bytes);
    Range(Range&& other) noexcept;
    Range& operator=(Range&& other) noexcept;
    ~Range();

    std::byte* data() const { return base_; }
    std::size_t bytes() const { return bytes_; }
    void map(std::size_t offset, std::size_t bytes, Memory::Handle handle);
    /// Takes over another range's mappings, each to the same offset here.
    void take_mappings(Range& other);

  private:
    struct Mapped {
        std::size_t offset;
        std::size_t bytes;
    };
    void reset() noexcept;

    std::shared_ptr<Memory> memory_;
    std::byte* base_ = nullptr;
    std::size_t bytes_ = 0;
    std::vector<Mapped> mapped_;
};

/// One allocation of one rank, and every place where this process maps it.
struct Piece {
    struct Place {
        Range* range;
        std::size_t offset;
    };
    int owner;
    std::size_t bytes;
    std::vector<Place> places;
};

struct Fabric::Impl {
    FabricOptions options;
    Backend backend = Backend::kHost;
    std::string fallback_reason;
    std::vector<int> local_ranks;
    std::vector<std::string> device_ids;
    std::vector<int> cuda_devices;  ///< ordinal per local rank
    std::shared_ptr<Memory> memory;
    std::unique_ptr<Rendezvous> rendezvous;  ///< none when all ranks are in this process
    std::unique_ptr<Rendezvous> neighbours;  ///< of one machine, where the ranks met over TCP
    std::vector<int> sharers;  ///< ranks that memory can be handed to, this one among them
    std::vector<int> nodes;    ///< of each rank
    std::shared_ptr<SymmetricHeap> heap;     ///< where there are several nodes, and in `nvshmem`
    std::shared_ptr<FabricKernels> kernels;  ///< null: those that store alone
    std::unique_ptr<Engine> engine;
    std::vector<Range> signal_ranges;
    HeapMemory signal_memory;          ///< in their place where there is a heap of the GPU's
    std::uint32_t channels_taken = 0;  ///< a bit per channel

    bool is_local(int rank) const;
    bool same_node(int rank) const { return nodes[rank] == nodes[options.rank]; }
    bool several_nodes() const;
    /// Who carries descriptors between `sharers`; null when this rank has no one to share with.
    Rendezvous* sharing() const;
    void check() const;
    std::vector<std::string> agree(const std::string& call, const Outcome& outcome = {},
                                   const std::string& payload = {});
    /// Collective: every rank allocates its own pieces, hands them to all sharers, and maps theirs.
    /// Pieces of one owner come in the same order, with the same sizes, on all ranks. Throws the
    /// same Error on all ranks when one fails.
    void build(const std::string& what, const std::vector<Piece>& pieces);
    /// Channels side by side. Ranks take them in the same order, so they agree without a word.
    int take_channels(int count);
    void give_channels(int first, int count) noexcept;

    void set_up();
    void find_nodes();
    std::vector<int> places() const;
    void open_heap();
    void set_up_memory();
    void set_up_signals();
    Blocks map_signals();
};

/// Runs one rank's part of a collective step and turns what it throws into an outcome.
template <class F>
Outcome attempt(F&& f) {
    try {
        f();
        return {};
    } catch (const Error& e) {
        return Outcome::failed(e.kind(), e.what());
    } catch (const std::exception& e) {
        return Outcome::failed(ErrorKind::kEnvironment, e.what());
    }
}

const char* name_of(Backend backend);
const char* name_of(DType dtype);

}  // namespace xstage::fabric
