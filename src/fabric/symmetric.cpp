#include <fmt/format.h>

#include "fabric/group.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {

struct SymmetricBuffer::Impl {
    Fabric::Impl& group;
    DType dtype;
    std::size_t bytes = 0;
    std::size_t mapped = 0;
    std::vector<Range> ranges;  ///< one per rank
    HeapMemory memory;          ///< in their place where the group has a heap

    std::size_t round_up(std::size_t value) const {
        const std::size_t page = group.memory->page_bytes();
        return (value + page - 1) / page * page;
    }

    std::vector<Range> reserve(std::size_t size) const {
        std::vector<Range> fresh;
        for (int r = 0; r < group.options.world; ++r) fresh.emplace_back(group.memory, size);
        return fresh;
    }

    /// Brings the buffer to `wanted` bytes, in new address space where the old does not suffice.
    void extend(const std::string& call, std::size_t wanted, std::size_t space) {
        if (group.heap) {
            extend_in_heap(call, wanted, space);
            return;
        }
        const std::size_t end = round_up(wanted);
        const bool move = ranges.empty() || end > ranges.front().bytes();
        std::vector<Range> fresh;
        const Outcome reserved = attempt([&] {
            if (move) fresh = reserve(std::max(end, round_up(space)));
        });
        group.agree(call, reserved);
        std::vector<Range>& into = move ? fresh : ranges;
        if (end > mapped) {
            std::vector<Piece> pieces;
            for (int r = 0; r < group.options.world; ++r)
                pieces.push_back({r, end - mapped, {{&into[r], mapped}}});
            group.build(call + " memory", pieces);
            mapped = end;
        }
        if (move) {
            for (std::size_t r = 0; r < ranges.size(); ++r) fresh[r].take_mappings(ranges[r]);
            ranges = std::move(fresh);
        }
        bytes = wanted;
    }

    /// The heap cannot map more behind what is there: the reserve is allocated at once, and what
    /// outgrows it is copied.
    void extend_in_heap(const std::string& call, std::size_t wanted, std::size_t space) {
        group.agree(call);
        if (wanted > mapped) {
            const std::size_t size = round_up(std::max(wanted, space));
            HeapMemory fresh(group.heap, size, call);
            const int rank = group.options.rank;
            group.agree(call + " contents", attempt([&] {
                            if (bytes == 0) return;
                            group.memory->quiesce();
                            group.engine->put(rank, rank, fresh.data(), true, memory.data(), bytes,
                                              {});
                            group.memory->quiesce();
                        }));
            memory = std::move(fresh);
            mapped = size;
        }
        bytes = wanted;
    }

    std::byte* at(int rank) const {
        if (rank < 0 || rank >= group.options.world)
            throw Error(ErrorKind::kBadInput, fmt::format("there is no rank {}", rank));
        return group.heap ? memory.at(rank) : ranges[rank].data();
    }

    void check_span(const char* what, std::size_t offset, std::size_t length) const {
        if (offset > bytes || length > bytes - offset)
            throw Error(ErrorKind::kBadInput, fmt::format("{} bytes from {} are not in a {} of {}",
                                                          length, offset, what, bytes));
    }
};

SymmetricBuffer::SymmetricBuffer(Fabric& fabric, std::size_t bytes, DType dtype,
                                 std::size_t reserve_bytes)
    : impl_(new Impl{fabric.impl(), dtype, 0, 0, {}, {}}) {
    fabric.check();
    const std::string call =
        fmt::format("symmetric_buffer(bytes={}, dtype={})", bytes, name_of(dtype));
    if (bytes == 0) throw Error(ErrorKind::kBadInput, "a symmetric buffer needs at least one byte");
    impl_->extend(call, bytes, reserve_bytes);
}
SymmetricBuffer::~SymmetricBuffer() = default;

std::size_t SymmetricBuffer::bytes() const {
    return impl_->bytes;
}

void* SymmetricBuffer::at(int rank) const {
    return impl_->at(rank);
}

void SymmetricBuffer::put(int from, int to, std::size_t offset, const SymmetricBuffer& source,
                          std::size_t source_offset, std::size_t bytes, const Streams& streams) {
    Fabric::Impl& group = impl_->group;
    group.check();
    if (!group.is_local(from))
        throw Error(ErrorKind::kBadInput, fmt::format("rank {} is not in this process", from));
    impl_->check_span("buffer", offset, bytes);
    source.impl_->check_span("source", source_offset, bytes);
    if (bytes == 0) return;
    std::byte* const mapped = impl_->at(to);
    std::byte* const target = mapped != nullptr ? mapped : impl_->memory.target(to);
    group.engine->put(from, to, target + offset, mapped != nullptr,
                      source.impl_->at(from) + source_offset, bytes, streams);
}

void SymmetricBuffer::grow(std::size_t bytes) {
    impl_->group.check();
    if (bytes < impl_->bytes)
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("a symmetric buffer of {} bytes cannot shrink to {}", impl_->bytes, bytes));
    impl_->extend(fmt::format("symmetric_buffer.grow(from={}, to={}, dtype={})", impl_->bytes,
                              bytes, name_of(impl_->dtype)),
                  bytes, bytes);
}

}  // namespace xstage::fabric
