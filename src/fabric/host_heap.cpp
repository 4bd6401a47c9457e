#include <fmt/format.h>

#include <map>

#include "fabric/group.hpp"
#include "fabric/heap.hpp"

namespace xstage::fabric {
namespace {

class HostHeap final : public SymmetricHeap {
  public:
    explicit HostHeap(Fabric::Impl& group) : group_(group) {}

    std::byte* allocate(std::size_t bytes, const std::string& what) override {
        const std::size_t page = group_.memory->page_bytes();
        const std::size_t size = (bytes + page - 1) / page * page;
        std::vector<Range> ranges(group_.options.world);
        const Outcome reserved = attempt([&] {
            for (Range& range : ranges) range = Range(group_.memory, size);
        });
        group_.agree(what + " heap", reserved);
        std::vector<Piece> pieces;
        for (int r = 0; r < group_.options.world; ++r)
            pieces.push_back({r, size, {{&ranges[r], 0}}});
        group_.build(what + " heap memory", pieces);
        std::byte* const mine = ranges[group_.options.rank].data();
        allocations_[mine] = std::move(ranges);
        return mine;
    }

    void release(std::byte* memory) noexcept override { allocations_.erase(memory); }

    std::byte* at(std::byte* mine, int rank) const override {
        return group_.same_node(rank) ? target(mine, rank) : nullptr;
    }
    std::byte* target(std::byte* mine, int rank) const override {
        return allocations_.at(mine)[rank].data();
    }

  private:
    Fabric::Impl& group_;
    std::map<std::byte*, std::vector<Range>> allocations_;
};

}  // namespace

std::unique_ptr<SymmetricHeap> make_host_heap(Fabric::Impl& group) {
    return std::make_unique<HostHeap>(group);
}

}  // namespace xstage::fabric
