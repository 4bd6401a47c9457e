#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "xstage/fabric/layout.hpp"
#include "xstage/fabric/signals.hpp"
#include "xstage/plan/puts.hpp"

namespace xstage::device {
struct FabricGroup;
}

namespace xstage::fabric {

enum class Backend {
    kHost,     ///< ranks are threads or processes; memory is memfd
    kLocal,    ///< ranks are virtual, all in this process, on the GPUs there are
    kProcess,  ///< one process per rank on one node, one GPU each (several may share one)
    kNvshmem,  ///< one process per rank on one or several nodes, by NVSHMEM (docs/multi-node.md)
};

/// How an allocation is handed to another process.
enum class HandleType { kNone, kPosixDescriptor, kFabric };

enum class DType : std::uint8_t { kU8, kF16, kBf16, kF32, kF64 };
std::size_t bytes_of(DType dtype);

struct FabricOptions {
    Backend backend = Backend::kHost;
    int world = 1;
    int rank = 0;  ///< host and process: which rank this thread or process is
    /// All but local: the same on all ranks and unlike that of any other live group. A name that
    /// begins with '/' is a path for sockets, for ranks in different network namespaces;
    /// "tcp://host:port" is where rank 0 listens, for ranks on several machines.
    std::string name;
    /// CUDA devices: local, one per rank; process and nvshmem, this rank's. Empty: the rank (on its
    /// machine, where the ranks met over TCP) modulo device count.
    std::vector<int> devices;
    std::chrono::milliseconds setup_timeout{30000};  ///< for every collective host call
    std::chrono::milliseconds wait_timeout{30000};   ///< for every wait on a signal
    /// How memory is to travel: kPosixDescriptor within a node. kFabric (between nodes) is not
    /// built yet.
    HandleType handle_type = HandleType::kPosixDescriptor;
    /// Trap in the kernel whose wait ran out. It ends the CUDA context, so it is off by default.
    bool trap_on_timeout = false;
    /// When a rank lacks what the backend needs, all ranks fall back to `host` together.
    bool allow_fallback = false;
    /// host and nvshmem: the node of this rank. Ranks of different nodes reach each other by puts
    /// alone, even where they share a machine. Negative, and the same on all ranks: their machines.
    int node = -1;
    plan::PutCosts puts;              ///< of the network between nodes; sizes the chunks
    std::size_t put_chunk_bytes = 0;  ///< 0: sized by `puts`
    std::size_t host_page_bytes = std::size_t{2} << 20;  ///< the page that `host` emulates
};

/// CUDA streams (cudaStream_t) for a call, one for each device of this process's ranks; a single
/// one serves when there is one device. `host` ignores them: its calls are done when they return.
class Streams {
  public:
    Streams(void* stream = nullptr) : streams_{stream} {}
    /// Throws Error (kBadInput) for more than kMaxRanks.
    Streams(std::span<void* const> streams);
    std::span<void* const> get() const { return {streams_.data(), count_}; }

  private:
    // No vector: a call on a stream allocates nothing, not even on the host.
    std::array<void*, kMaxRanks> streams_{};
    std::size_t count_ = 1;
};

/// A group of ranks. Construction, and that of everything built on a group, is collective: every
/// rank calls in the same order with the same arguments, and either all succeed or all throw the
/// same Error. Stream calls (barrier and StitchedTensor's begin, publish, acquire) never meet on
/// the host, allocate nothing, and may be captured into a CUDA graph.
///
/// A wait that runs out breaks the group: the kernel reports and returns, later calls store nothing
/// to peers and fill their output with NaN, and the next host call throws. Build a new group to go
/// on. Calls on one group come from one thread at a time.
class Fabric {
  public:
    explicit Fabric(const FabricOptions& options);
    ~Fabric();
    Fabric(const Fabric&) = delete;
    Fabric& operator=(const Fabric&) = delete;

    int world() const;
    /// The ranks of this process: all of them in `local`, one elsewhere.
    const std::vector<int>& local_ranks() const;
    Backend backend() const;
    /// Why the group is on `host` although another backend was asked for; empty otherwise.
    const std::string& fallback_reason() const;
    std::size_t page_bytes() const;
    HandleType handle_type() const;
    /// What each rank's memory is on: a GPU's UUID, or "host".
    const std::vector<std::string>& device_ids() const;
    /// The node of each rank: 0, 1, ... in the order in which the ranks first name them.
    const std::vector<int>& nodes() const;

    /// All ranks of the group, on their streams: what a rank stored before is visible to all after.
    void barrier(const Streams& streams = {});

    /// Meets the other ranks on the host and compares `what`. For tests and set-up, not for calls.
    void agree(const std::string& what);

    /// The failure that broke the group, if one did.
    std::optional<Failure> failure() const;
    /// Throws Error (kTimedOut, kBadInput or kEnvironment) when the group is broken.
    void check() const;
    /// Waits for the streams, then check().
    void synchronize(const Streams& streams = {}) const;

    /// For kernels that signal by themselves or must see that the group is broken
    /// (xstage/device/fabric.cuh): what they need, for the n-th device of this process's ranks.
    /// Null on `host`.
    const device::FabricGroup* device_group(int device_index = 0) const;

    struct Impl;
    Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

/// The same number of bytes on every rank, all visible to all of a node; put() reaches the others.
/// Collective.
class SymmetricBuffer {
  public:
    /// `reserve_bytes` of address space are kept, so that growing within it moves nothing.
    SymmetricBuffer(Fabric& fabric, std::size_t bytes, DType dtype = DType::kU8,
                    std::size_t reserve_bytes = 0);
    ~SymmetricBuffer();
    SymmetricBuffer(const SymmetricBuffer&) = delete;
    SymmetricBuffer& operator=(const SymmetricBuffer&) = delete;

    std::size_t bytes() const;
    /// Memory of that rank, as this process addresses it; null for a rank of another node.
    void* at(int rank) const;
    /// Copies from this process's rank `from` to any rank's buffer, on the stream: `bytes` at
    /// `source_offset` of `source` to `offset` here. There after the next barrier; the source may
    /// be changed after it too. Throws Error (kBadInput) for what lies outside of either.
    void put(int from, int to, std::size_t offset, const SymmetricBuffer& source,
             std::size_t source_offset, std::size_t bytes, const Streams& streams = {});
    /// Collective. Contents stay; addresses too while the reserve lasts. No kernel may be using the
    /// buffer when it has to move.
    void grow(std::size_t bytes);

    struct Impl;

  private:
    std::unique_ptr<Impl> impl_;
};

struct StitchedOptions {
    LayoutKind kind = LayoutKind::kPadded;
    ChunkOrder order = ChunkOrder::kWhole;
    std::vector<std::int64_t> rows;  ///< per rank
    std::size_t row_bytes = 0;       ///< of a whole row, all heads
    DType dtype = DType::kBf16;
    std::int64_t tile_rows = 128;
    std::vector<int> rank_order;
    /// The bytes of a row that each rank stores, which decide what crosses to other nodes; where
    /// all ranks are on one node nothing asks. Empty: equal parts in the order of the ranks.
    std::vector<plan::RowPart> parts;
    /// In place of `parts` where ranks store other blocks of the owner's memory: offsets count from
    /// its start, and a row of the layout may be anything. The same on all ranks.
    plan::StoredBlocks stored;
    int buffers = 2;  ///< one works, at the price of waiting for the peers' readers in every call
};

/// One contiguous range per buffer whose chunks live on the ranks that own them: a kernel's
/// ordinary stores to `range` land on the peers, and `receive` is where theirs land here. Chunks of
/// ranks on other nodes are local memory, and publish sends them on. Collective.
///
/// One call, in stream order: begin, kernels that store into range(buffer), publish, acquire,
/// kernels that read receive(buffer). The readers own the buffer until this rank's next begin on
/// the tensor.
class StitchedTensor {
  public:
    StitchedTensor(Fabric& fabric, const StitchedOptions& options);
    ~StitchedTensor();
    StitchedTensor(const StitchedTensor&) = delete;
    StitchedTensor& operator=(const StitchedTensor&) = delete;

    const StitchedLayout& layout() const;
    int buffers() const;
    /// All ranks' chunks in range order: the scattering view (reading through it gathers).
    void* range(int buffer) const;
    /// The rank's own rows in natural order.
    void* receive(int buffer, int rank) const;

    /// Gives back what was received before, then waits until every peer has given back this buffer.
    void begin(int buffer, const Streams& streams = {});
    /// Says that all stores of this call into the buffer have been issued.
    void publish(int buffer, const Streams& streams = {});
    /// Waits for every peer's publish. NaN fills the receive buffer when the group is broken.
    void acquire(int buffer, const Streams& streams = {});

    /// publish and acquire as one kernel, for when nothing comes between them.
    void exchange(int buffer, const Streams& streams = {});

    /// publish of this, begin of `next` and acquire of this as one kernel: for a chain whose second
    /// step reads what the first one's peers stored and stores to peers itself. The group must be
    /// that of `next`.
    void hand_over(int buffer, StitchedTensor& next, int next_buffer, const Streams& streams = {});

    /// For kernels that signal by themselves.
    CallShape call_shape(int buffer) const;

    struct Impl;

  private:
    std::unique_ptr<Impl> impl_;
};

/// Local memory of each of this process's ranks, seen in two orders: `natural`, the rows of rank 0,
/// then rank 1, and so on, each chunk on a page; and `stitched`, the order of a stitched tensor, so
/// that a kernel's input can follow its output. Not collective.
class LocalAlias {
  public:
    /// `row_bytes` of a row of this memory; rows per page must be those of the layout, so the row
    /// stride is the layout's. Throws Error (kBadInput) when a row does not fit it.
    LocalAlias(Fabric& fabric, const StitchedLayout& layout, std::size_t row_bytes);
    ~LocalAlias();
    LocalAlias(const LocalAlias&) = delete;
    LocalAlias& operator=(const LocalAlias&) = delete;

    void* stitched(int rank) const;
    void* natural(int rank) const;
    /// Where a row of a chunk is in the natural view, in bytes.
    std::size_t natural_offset(int chunk, std::int64_t row) const;
    std::size_t bytes() const;

    struct Impl;

  private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace xstage::fabric
