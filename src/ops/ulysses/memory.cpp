#include "ops/ulysses/memory.hpp"

#include <algorithm>

namespace xstage::ulysses {
namespace {

/// Hands out aligned places one after the other.
class Cursor {
  public:
    std::size_t take(std::size_t bytes) {
        const std::size_t at = end_;
        end_ += (bytes + 255) / 256 * 256;
        return at;
    }
    std::size_t end() const { return end_; }

  private:
    std::size_t end_ = 0;
};

std::size_t size(std::int64_t a, std::int64_t b, std::int64_t c, std::size_t unit) {
    return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c) *
           unit;
}

}  // namespace

Arena::Arena(fabric::Fabric& fabric, const Plan& plan, const Options& options)
    : fabric_(fabric), plan_(plan), element_(fabric::bytes_of(plan.problem.dtype)) {
    const Problem& p = plan.problem;
    most_rows_ = *std::max_element(p.rows_q.begin(), p.rows_q.end());
    const std::int64_t most_kv =
        p.rows_kv.empty() ? most_rows_ : *std::max_element(p.rows_kv.begin(), p.rows_kv.end());
    const std::int64_t q_row = std::int64_t{plan.heads.max_q()} * p.head_dim;
    const std::int64_t kv_row = std::int64_t{plan.heads.max_kv()} * p.head_dim;
    const std::size_t q_bytes = size(p.batch, plan.q_rows, q_row, element_);
    const std::size_t kv_bytes = size(p.batch, p.image_kv() + p.text_kv, kv_row, element_);

    fabric::StitchedOptions stitched = plan.stitched;
    stitched.buffers = options.buffers;
    for (const HeadRange& heads : plan.heads.q) {
        const std::size_t head = static_cast<std::size_t>(p.head_dim) * element_;
        stitched.parts.push_back({static_cast<std::size_t>(heads.begin) * head,
                                  static_cast<std::size_t>(heads.count()) * head});
    }
    for (int t = 0; t < plan.tensors; ++t)
        out_.push_back(std::make_unique<fabric::StitchedTensor>(fabric, stitched));

    if (options.attend) {
        Cursor cursor;
        cursor.take(q_bytes);
        k_at_ = cursor.take(kv_bytes);
        v_at_ = cursor.take(kv_bytes);
        // Whole pages as "rows": a chunk per rank with signals and credits, laid out by us.
        fabric::StitchedOptions pages;
        pages.kind = fabric::LayoutKind::kBatched;
        pages.row_bytes = fabric.page_bytes();
        pages.rows.assign(
            static_cast<std::size_t>(p.world()),
            static_cast<std::int64_t>((cursor.end() + pages.row_bytes - 1) / pages.row_bytes));
        pages.dtype = p.dtype;
        pages.buffers = options.buffers;
        pages.stored = [this](int source, int dest) { return stored(source, dest); };
        exchange_ = std::make_unique<fabric::StitchedTensor>(fabric, pages);
    }

    Cursor slot;
    slot.take(size(p.batch, p.text_q, p.pitch(), element_));
    if (p.with_lse) {
        lse_at_ = slot.take(size(p.batch, p.heads_q, most_rows_, sizeof(float)));
        text_lse_at_ = slot.take(size(p.batch, p.heads_q, p.text_q, sizeof(float)));
    }
    slot_bytes_ = slot.end();
    Cursor cursor;
    cursor.take(slot_bytes_ * static_cast<std::size_t>(options.buffers));
    if (p.with_lse) {
        for (const Block& b : plan.blocks)
            kernel_lse_at_.push_back(
                cursor.take(size(b.batch, plan.heads.max_q(), b.rows, sizeof(float))));
        // All rows of all samples in one call.
        if (plan.layout == Layout::kScatter)
            kernel_lse_at_.assign(
                1, cursor.take(size(p.batch, plan.heads.max_q(), plan.q_rows, sizeof(float))));
        kernel_text_lse_at_ =
            cursor.take(size(p.batch, plan.heads.max_q(), p.text_q, sizeof(float)));
    }
    if (plan.layout == Layout::kScatter) packed_at_ = cursor.take(q_bytes);
    if (plan.copies_q) copied_q_at_ = cursor.take(q_bytes);
    if (options.attend)
        for (std::size_t& at : rstd_at_)
            at = cursor.take(size(p.batch,
                                  std::max(most_rows_, most_kv) + std::max(p.text_q, p.text_kv), 1,
                                  sizeof(float)));
    side_ =
        std::make_unique<fabric::SymmetricBuffer>(fabric, std::max<std::size_t>(cursor.end(), 256));
}

/// Rows of `source` in the gathered tensors of `dest`: runs of whole rows, as gather.cpp places
/// them. Text rows are each rank's own.
std::vector<plan::PutBlock> Arena::stored(int source, int dest) const {
    const Problem& p = plan_.problem;
    const auto s = static_cast<std::size_t>(source), d = static_cast<std::size_t>(dest);
    std::vector<plan::PutBlock> blocks;
    const auto add = [&](std::size_t at, int heads, std::int64_t first, std::int64_t rows,
                         std::int64_t sample_rows) {
        const std::size_t row = size(heads, p.head_dim, 1, element_);
        for (int b = 0; b < p.batch; ++b)
            blocks.push_back({at + size(b * sample_rows + first, 1, 1, row), row, rows, row});
    };
    const int q_heads = plan_.heads.q[d].count(), kv_heads = plan_.heads.kv[d].count();
    for (std::int64_t row = 0; row < p.rows_q[s];) {
        const std::int64_t first = axis_row(plan_.q_map, source, row);
        std::int64_t rows = 1;
        while (row + rows < p.rows_q[s] &&
               axis_row(plan_.q_map, source, row + rows) == first + rows)
            ++rows;
        add(0, q_heads, first, rows, plan_.q_rows);
        row += rows;
    }
    std::int64_t first = p.text_place == TextPlace::kFront ? p.text_kv : 0;
    for (int r = 0; r < source; ++r) first += p.kv_rows(r);
    for (std::size_t at : {k_at_, v_at_})
        add(at, kv_heads, first, p.kv_rows(source), p.image_kv() + p.text_kv);
    return blocks;
}

View Arena::exchanged(int buffer, int rank, std::size_t offset, std::int64_t rows,
                      int heads) const {
    auto* base =
        static_cast<std::byte*>(exchange_->range(buffer)) + exchange_->layout().offset_of(rank, 0);
    return packed(base + offset, rows, heads, plan_.problem.head_dim);
}

View Arena::gathered_q(int buffer, int rank) const {
    return exchanged(buffer, rank, 0, plan_.q_rows,
                     plan_.heads.q[static_cast<std::size_t>(rank)].count());
}
View Arena::gathered_k(int buffer, int rank) const {
    return exchanged(buffer, rank, k_at_, plan_.problem.image_kv() + plan_.problem.text_kv,
                     plan_.heads.kv[static_cast<std::size_t>(rank)].count());
}
View Arena::gathered_v(int buffer, int rank) const {
    return exchanged(buffer, rank, v_at_, plan_.problem.image_kv() + plan_.problem.text_kv,
                     plan_.heads.kv[static_cast<std::size_t>(rank)].count());
}

View Arena::copied_q(int rank) const {
    return packed(side(rank, copied_q_at_), plan_.q_rows,
                  plan_.heads.q[static_cast<std::size_t>(rank)].count(), plan_.problem.head_dim);
}

View Arena::packed_out(int rank) const {
    return packed(side(rank, packed_at_), plan_.q_rows,
                  plan_.heads.q[static_cast<std::size_t>(rank)].count(), plan_.problem.head_dim);
}

View Arena::text_out(int buffer, int rank) const {
    if (plan_.problem.text_q == 0) return {};
    const std::int64_t row = plan_.problem.pitch();
    return {side(rank, slot_bytes_ * static_cast<std::size_t>(buffer)), plan_.problem.text_q * row,
            row, plan_.problem.head_dim};
}

LseView Arena::lse(int buffer, int rank) const {
    if (!plan_.problem.with_lse) return {};
    return {reinterpret_cast<float*>(
                side(rank, slot_bytes_ * static_cast<std::size_t>(buffer) + lse_at_)),
            most_rows_ * plan_.problem.heads_q, most_rows_};
}

LseView Arena::text_lse(int buffer, int rank) const {
    if (!plan_.problem.with_lse || plan_.problem.text_q == 0) return {};
    return {reinterpret_cast<float*>(
                side(rank, slot_bytes_ * static_cast<std::size_t>(buffer) + text_lse_at_)),
            plan_.problem.text_q * plan_.problem.heads_q, plan_.problem.text_q};
}

std::byte* Arena::kernel_lse(int rank, std::size_t block) const {
    return side(rank, kernel_lse_at_.at(block));
}
std::byte* Arena::kernel_text_lse(int rank) const {
    return side(rank, kernel_text_lse_at_);
}
float* Arena::rstd(int rank, int which) const {
    return reinterpret_cast<float*>(side(rank, rstd_at_[which]));
}

std::size_t Arena::bytes() const {
    std::size_t total = side_->bytes();
    for (const auto& tensor : out_)
        for (int r : fabric_.local_ranks())
            total += tensor->layout().chunk_bytes[static_cast<std::size_t>(r)] *
                     static_cast<std::size_t>(tensor->buffers()) / fabric_.local_ranks().size();
    if (exchange_)
        total +=
            exchange_->layout().chunk_bytes[0] * static_cast<std::size_t>(exchange_->buffers());
    return total;
}

}  // namespace xstage::ulysses
