#include "fabric/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace xstage::fabric {

Range::Range(std::shared_ptr<Memory> memory, std::size_t bytes)
    : memory_(std::move(memory)), bytes_(bytes) {
    base_ = memory_->reserve(bytes_);
}

Range::Range(Range&& other) noexcept
    : memory_(std::move(other.memory_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_(std::move(other.mapped_)) {
    other.mapped_.clear();
}

Range& Range::operator=(Range&& other) noexcept {
    if (this != &other) {
        reset();
        memory_ = std::move(other.memory_);
        base_ = std::exchange(other.base_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
        mapped_ = std::exchange(other.mapped_, {});
    }
    return *this;
}

Range::~Range() {
    reset();
}

void Range::reset() noexcept {
    if (base_ == nullptr) return;
    if (!mapped_.empty()) memory_->quiesce();
    for (const Mapped& m : mapped_) memory_->unmap(base_ + m.offset, m.bytes);
    mapped_.clear();
    memory_->unreserve(base_, bytes_);
    base_ = nullptr;
}

void Range::map(std::size_t offset, std::size_t bytes, Memory::Handle handle) {
    mapped_.reserve(mapped_.size() + 1);
    memory_->map(base_ + offset, bytes, handle);
    mapped_.push_back({offset, bytes});
}

void Range::take_mappings(Range& other) {
    mapped_.reserve(mapped_.size() + other.mapped_.size());
    while (!other.mapped_.empty()) {
        const Mapped m = other.mapped_.back();
        memory_->move(other.base_ + m.offset, base_ + m.offset, m.bytes);
        other.mapped_.pop_back();
        mapped_.push_back(m);
    }
}

namespace {

class HeldHandle {
  public:
    HeldHandle(Memory& memory, Memory::Handle handle) : memory_(memory), handle_(handle) {}
    HeldHandle(const HeldHandle&) = delete;
    HeldHandle& operator=(const HeldHandle&) = delete;
    ~HeldHandle() { memory_.release(handle_); }
    Memory::Handle get() const { return handle_; }

  private:
    Memory& memory_;
    Memory::Handle handle_;
};

void map_piece(const Piece& piece, Memory::Handle handle) {
    for (const Piece::Place& place : piece.places)
        place.range->map(place.offset, piece.bytes, handle);
}

}  // namespace

bool Fabric::Impl::is_local(int rank) const {
    return std::find(local_ranks.begin(), local_ranks.end(), rank) != local_ranks.end();
}

bool Fabric::Impl::several_nodes() const {
    return std::any_of(nodes.begin(), nodes.end(), [&](int n) { return n != nodes.front(); });
}

Rendezvous* Fabric::Impl::sharing() const {
    if (neighbours) return neighbours.get();
    return rendezvous && rendezvous->carries_descriptors() ? rendezvous.get() : nullptr;
}

void Fabric::Impl::check() const {
    if (!engine) return;
    const std::optional<FailureReport> report = engine->failure();
    if (!report) return;
    const Failure failure = Failure::decode(report->failure);
    const ErrorKind kind = failure.kind == FailureKind::kTimeout        ? ErrorKind::kTimedOut
                           : failure.kind == FailureKind::kDisagreement ? ErrorKind::kBadInput
                                                                        : ErrorKind::kEnvironment;
    throw Error(kind, describe(failure, options.wait_timeout));
}

std::vector<std::string> Fabric::Impl::agree(const std::string& call, const Outcome& outcome,
                                             const std::string& payload) {
    if (rendezvous) return rendezvous->agree(call, outcome, payload);
    if (!outcome.ok) throw Error(outcome.kind, outcome.reason);
    return std::vector<std::string>(options.world, payload);
}

void Fabric::Impl::build(const std::string& what, const std::vector<Piece>& pieces) {
    if (!rendezvous) {
        for (const Piece& piece : pieces) {
            const HeldHandle handle(*memory, memory->allocate(piece.bytes, piece.owner));
            map_piece(piece, handle.get());
        }
        return;
    }
    Rendezvous* const share = sharing();
    const std::size_t mine = share != nullptr ? share->descriptor_batch() : kMaxDescriptors;
    std::size_t batch = mine;
    for (const std::string& theirs : agree(what, {}, std::to_string(mine)))
        batch = std::min<std::size_t>(batch, std::stoul(theirs));

    // By place among the sharers; what others own nobody here can map.
    std::vector<std::vector<const Piece*>> owned(sharers.size());
    const auto index_of = [&](int rank) {
        return static_cast<std::size_t>(std::find(sharers.begin(), sharers.end(), rank) -
                                        sharers.begin());
    };
    const std::size_t me = index_of(options.rank);
    for (const Piece& piece : pieces)
        if (const std::size_t at = index_of(piece.owner); at < owned.size())
            owned[at].push_back(&piece);
    std::size_t most = 0;
    for (const auto& list : owned) most = std::max(most, list.size());
    auto in_batch = [&](std::size_t sharer, std::size_t start) {
        return std::min(batch, owned[sharer].size() - std::min(start, owned[sharer].size()));
    };

    Outcome outcome;
    for (std::size_t start = 0; start < most; start += batch) {
        std::vector<UniqueFd> exported;
        if (outcome.ok) {
            outcome = attempt([&] {
                for (std::size_t i = 0; i < in_batch(me, start); ++i) {
                    const Piece& piece = *owned[me][start + i];
                    const HeldHandle handle(*memory, memory->allocate(piece.bytes, piece.owner));
                    map_piece(piece, handle.get());
                    if (share != nullptr)
                        exported.push_back(memory->export_descriptor(handle.get()));
                }
            });
        }
        std::vector<int> descriptors;
        for (const UniqueFd& fd : exported) descriptors.push_back(fd.get());
        std::vector<std::size_t> expected;
        for (std::size_t s = 0; s < sharers.size(); ++s) expected.push_back(in_batch(s, start));
        auto take = [&](int peer, std::vector<UniqueFd> received) {
            const Outcome taken = attempt([&] {
                for (std::size_t i = 0; i < received.size(); ++i) {
                    const Piece& piece = *owned[peer][start + i];
                    if (piece.places.empty()) continue;
                    const HeldHandle handle(*memory,
                                            memory->import_descriptor(received[i], piece.bytes));
                    map_piece(piece, handle.get());
                    received[i].reset();
                }
            });
            if (outcome.ok) outcome = taken;
        };
        // Even a rank that failed sends its message, so that nobody waits for it.
        if (share != nullptr)
            share->exchange_descriptors(descriptors, !outcome.ok, expected, take, outcome);
    }
    agree(what + " done", outcome);
}

int Fabric::Impl::take_channels(int count) {
    const std::uint32_t wanted = count >= 32 ? ~0u : (1u << count) - 1;
    for (int first = 0; first + count <= kMaxChannels; ++first) {
        if (channels_taken & wanted << first) continue;
        channels_taken |= wanted << first;
        return first;
    }
    throw Error(
        ErrorKind::kBadInput,
        fmt::format("a group has {} buffers at most, {} more were asked for", kMaxChannels, count));
}

void Fabric::Impl::give_channels(int first, int count) noexcept {
    channels_taken &= ~((count >= 32 ? ~0u : (1u << count) - 1) << first);
}

const char* name_of(Backend backend) {
    switch (backend) {
        case Backend::kHost:
            return "host";
        case Backend::kLocal:
            return "local";
        case Backend::kProcess:
            return "process";
        case Backend::kNvshmem:
            return "nvshmem";
    }
    return "?";
}

const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::kU8:
            return "u8";
        case DType::kF16:
            return "f16";
        case DType::kBf16:
            return "bf16";
        case DType::kF32:
            return "f32";
        case DType::kF64:
            return "f64";
    }
    return "?";
}

std::size_t bytes_of(DType dtype) {
    switch (dtype) {
        case DType::kU8:
            return 1;
        case DType::kF16:
        case DType::kBf16:
            return 2;
        case DType::kF32:
            return 4;
        case DType::kF64:
            return 8;
    }
    return 0;
}

}  // namespace xstage::fabric
