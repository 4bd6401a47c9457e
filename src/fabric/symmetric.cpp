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
};

SymmetricBuffer::SymmetricBuffer(Fabric& fabric, std::size_t bytes, DType dtype,
                                 std::size_t reserve_bytes)
    : impl_(new Impl{fabric.impl(), dtype, 0, 0, {}}) {
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
    if (rank < 0 || rank >= impl_->group.options.world)
        throw Error(ErrorKind::kBadInput, fmt::format("there is no rank {}", rank));
    return impl_->ranges[rank].data();
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
