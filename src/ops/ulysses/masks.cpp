// Block masks of the whole attention, cut into the parts of the ranks' heads.

#include <atomic>

#include "ops/ulysses/impl.hpp"
#include "sparse/mask_shape.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

using sparse::BlockMask;

/// Captured graphs and plans hold on to masks by their number, so no two may share one.
std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

/// Heads [range) of batches [first, first + count).
BlockMask part(const BlockMask& mask, std::int64_t first, std::int64_t count, HeadRange range) {
    const auto row_words = static_cast<std::size_t>(mask.q_blocks() * mask.words());
    std::vector<std::uint32_t> bits;
    bits.reserve(static_cast<std::size_t>(count * range.count()) * row_words);
    for (std::int64_t b = first; b < first + count; ++b) {
        for (std::int64_t h = range.begin; h < range.end; ++h) {
            const std::uint32_t* from = mask.row(b, h, 0).data();
            bits.insert(bits.end(), from, from + row_words);
        }
    }
    return sparse::mask_from_bits(count, range.count(), mask.q_rows(), mask.kv_rows(), bits);
}

}  // namespace

void UlyssesAttention::set_mask(std::shared_ptr<const BlockMask> mask) {
    Impl& m = *impl_;
    if (!m.options.masked)
        throw Error(ErrorKind::kBadInput, "this object was built without Options::masked");
    if (mask == nullptr) throw Error(ErrorKind::kBadInput, "the block mask must not be NULL");
    if (const auto found = m.masks.find(mask); found != m.masks.end()) {
        m.mask = &found->second;
        return;
    }
    const Problem& p = m.plan.problem;
    sparse::require_fit(*mask, {p.batch, p.heads_q, p.kv_heads(), p.image_q(), p.image_kv(), true});
    const bool by_sample = m.plan.layout == Layout::kPeers && mask->batches() > 1;
    MaskParts parts;
    parts.id = next_id();
    for (const int rank : m.fabric.local_ranks()) {
        const auto r = static_cast<std::size_t>(rank);
        HeadRange range{0, 1};
        if (mask->heads() == p.heads_q) {
            range = m.plan.heads.q[r];
        } else if (mask->heads() == p.kv_heads()) {
            range = m.plan.heads.kv[r];
        }
        std::vector<BlockMask>& of_rank = parts.of_rank.emplace_back();
        for (std::int64_t b = 0; b < (by_sample ? mask->batches() : 1); ++b)
            of_rank.push_back(part(*mask, b, by_sample ? 1 : mask->batches(), range));
    }
    // A generation's masks of all layers and steps may be many; the oldest plans go with them.
    constexpr std::size_t kMostMasks = 256;
    if (m.masks.size() >= kMostMasks) m.masks.clear();
    m.mask = &m.masks.emplace(std::move(mask), std::move(parts)).first->second;
}

void UlyssesAttention::Impl::add_mask(AttentionCall& call, int local, int sample) const {
    if (!options.masked) return;
    if (mask == nullptr)
        throw Error(ErrorKind::kBadInput,
                    "this object was built for a block mask, and none has been set");
    const auto& parts = mask->of_rank[static_cast<std::size_t>(local)];
    const auto i = parts.size() > 1 ? static_cast<std::size_t>(sample) : 0;
    call.mask = &parts[i];
    call.mask_id = mask->id * 4096 + i;
}

}  // namespace xstage::ulysses
