#include "xstage/fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "fabric/cuda_backend.hpp"
#include "fabric/group.hpp"
#include "fabric/nvshmem.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

void check_options(const FabricOptions& o) {
    if (o.world < 1 || o.world > kMaxRanks)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("a group has 1 to {} ranks, not {}", kMaxRanks, o.world));
    if (o.rank < 0 || o.rank >= o.world)
        throw Error(ErrorKind::kBadInput, fmt::format("rank {} is not one of {}", o.rank, o.world));
    if (o.handle_type != HandleType::kPosixDescriptor)
        throw Error(ErrorKind::kUnsupported,
                    "only memory handles that are descriptors are built so far");
}

std::uint64_t to_number(const std::string& text) {
    return std::stoull(text);
}

}  // namespace

void Fabric::Impl::set_up() {
    check_options(options);
    backend = options.backend;
    local_ranks.resize(backend == Backend::kLocal ? options.world : 1);
    std::iota(local_ranks.begin(), local_ranks.end(),
              backend == Backend::kLocal ? 0 : options.rank);
    if (options.world > 1 && backend != Backend::kLocal)
        rendezvous = std::make_unique<Rendezvous>(options.name, options.rank, options.world,
                                                  options.setup_timeout);
    find_nodes();
    try {
        set_up_memory();
        set_up_signals();
    } catch (const Error& e) {
        // Everyone got this very error, or nobody: the fallback needs no further word. `local` has
        // no host twin, since one thread cannot wait for itself.
        if (e.kind() != ErrorKind::kUnsupported || !options.allow_fallback ||
            backend != Backend::kProcess)
            throw;
        fallback_reason = e.what();
        engine.reset();
        signal_ranges.clear();
        backend = Backend::kHost;
        set_up_memory();
        set_up_signals();
    }
}

void Fabric::Impl::set_up_memory() {
    CudaParts parts;
    const Outcome outcome = attempt([&] {
        if (backend == Backend::kHost) {
            memory = make_host_memory(options.host_page_bytes);
            parts.device_ids = {"host"};
        } else {
            parts = open_cuda(options, local_ranks, places());
            memory = parts.memory;
        }
    });
    if (outcome.ok) cuda_devices = parts.devices;
    const std::string call = fmt::format("fabric(backend={}, world={}, fallback={})",
                                         name_of(backend), options.world, options.allow_fallback);
    std::string payload;
    if (outcome.ok)
        payload = pack_fields({std::to_string(memory->page_bytes()), parts.device_ids.front()});
    const std::vector<std::string> all = agree(call, outcome, payload);
    if (!rendezvous) {
        device_ids = parts.device_ids;
        open_heap();
        return;
    }
    device_ids.clear();
    for (int r = 0; r < options.world; ++r) {
        const std::vector<std::string> fields = unpack_fields(all[r]);
        // All ranks see the same payloads and so throw the same.
        if (to_number(fields[0]) != memory->page_bytes())
            throw Error(ErrorKind::kBadInput,
                        fmt::format("rank {} has pages of {} bytes, rank 0 of {}", r, fields[0],
                                    unpack_fields(all[0])[0]));
        device_ids.push_back(fields[1]);
    }
    open_heap();
}

std::vector<int> Fabric::Impl::places() const {
    if (!neighbours && !(rendezvous && sharers.size() == 1)) return local_ranks;
    const auto me = std::find(sharers.begin(), sharers.end(), options.rank);
    return {static_cast<int>(me - sharers.begin())};
}

void Fabric::Impl::open_heap() {
    if (backend == Backend::kNvshmem) {
        NvshmemParts parts = open_nvshmem(
            options, nodes, cuda_devices.front(),
            [this](const std::string& call, const Outcome& outcome, const std::string& payload) {
                return agree(call, outcome, payload);
            });
        heap = std::move(parts.heap);
        kernels = std::move(parts.kernels);
    } else if (several_nodes()) {
        heap = make_host_heap(*this);
    }
}

Blocks Fabric::Impl::map_signals() {
    Blocks blocks{};
    if (backend == Backend::kNvshmem) {
        // Puts carry signals between nodes, so the words must lie where puts reach.
        signal_memory = HeapMemory(heap, sizeof(SignalBlock), "signals");
        for (int r = 0; r < options.world; ++r)
            blocks[r] = reinterpret_cast<SignalBlock*>(signal_memory.at(r));
        agree("signals map", attempt([&] {
                  for (int r = 0; r < options.world; ++r)
                      if (same_node(r) && blocks[r] == nullptr)
                          throw Error(ErrorKind::kUnsupported,
                                      fmt::format("NVSHMEM cannot map rank {} although it is on "
                                                  "this node",
                                                  r));
              }));
        return blocks;
    }
    const std::size_t page = memory->page_bytes();
    const std::size_t bytes = (sizeof(SignalBlock) + page - 1) / page * page;
    std::vector<Piece> pieces;
    signal_ranges.resize(options.world);
    const Outcome reserved = attempt([&] {
        for (int r = 0; r < options.world; ++r) signal_ranges[r] = Range(memory, bytes);
    });
    agree("signals reserve", reserved);
    for (int r = 0; r < options.world; ++r) {
        pieces.push_back({r, bytes, {{&signal_ranges[r], 0}}});
        blocks[r] = reinterpret_cast<SignalBlock*>(signal_ranges[r].data());
    }
    build("signals", pieces);
    agree("signals clear", attempt([&] {
              for (int r : local_ranks) memory->clear(signal_ranges[r].data(), bytes, r);
          }));
    return blocks;
}

void Fabric::Impl::set_up_signals() {
    const Blocks blocks = map_signals();
    const Outcome opened = attempt([&] {
        std::function<bool(int)> peer_left;
        if (Rendezvous* meeting = rendezvous.get())
            peer_left = [meeting](int peer) { return meeting->left(peer); };
        if (backend == Backend::kHost) {
            engine = make_host_engine(blocks, options.rank, options.world, options.wait_timeout,
                                      options.trap_on_timeout, std::move(peer_left));
        } else {
            engine = make_cuda_engine(options, local_ranks, cuda_devices, blocks,
                                      std::move(peer_left), kernels);
        }
    });
    agree("signals open", opened);
    // Peer access can be reported and still lose stores: believe only a store that arrived.
    agree("self-test store", attempt([&] { engine->store_self_test(); }));
    std::string missing;
    Outcome arrived = attempt([&] {
        for (int r : engine->missing_self_tests())
            missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
    });
    if (arrived.ok && !missing.empty())
        arrived = Outcome::failed(ErrorKind::kUnsupported,
                                  fmt::format("stores of rank {} do not arrive here", missing));
    agree("self-test", arrived);
}

Streams::Streams(std::span<void* const> streams) : count_(streams.size()) {
    if (streams.size() > streams_.size())
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} streams are more than {} devices could use", streams.size(),
                                streams_.size()));
    std::copy(streams.begin(), streams.end(), streams_.begin());
}

Fabric::Fabric(const FabricOptions& options) : impl_(std::make_unique<Impl>()) {
    impl_->options = options;
    impl_->set_up();
}
Fabric::~Fabric() = default;

int Fabric::world() const {
    return impl_->options.world;
}
const std::vector<int>& Fabric::local_ranks() const {
    return impl_->local_ranks;
}
Backend Fabric::backend() const {
    return impl_->backend;
}
const std::string& Fabric::fallback_reason() const {
    return impl_->fallback_reason;
}
std::size_t Fabric::page_bytes() const {
    return impl_->memory->page_bytes();
}
HandleType Fabric::handle_type() const {
    return impl_->memory->handle_type();
}
const std::vector<std::string>& Fabric::device_ids() const {
    return impl_->device_ids;
}
const std::vector<int>& Fabric::nodes() const {
    return impl_->nodes;
}

void Fabric::barrier(const Streams& streams) {
    check();
    impl_->engine->barrier(streams);
}

void Fabric::agree(const std::string& what) {
    check();
    impl_->agree("agree(" + what + ")");
}

std::optional<Failure> Fabric::failure() const {
    const std::optional<FailureReport> report = impl_->engine->failure();
    if (!report) return std::nullopt;
    return Failure::decode(report->failure);
}

const device::FabricGroup* Fabric::device_group(int device_index) const {
    return impl_->engine->device_group(device_index);
}

void Fabric::check() const {
    impl_->check();
}

void Fabric::synchronize(const Streams& streams) const {
    impl_->engine->synchronize(streams);
    check();
}

}  // namespace xstage::fabric
