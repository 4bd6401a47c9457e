#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "xstage/fabric.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ulysses {

/// The memory of an attention object: the stitched results, the gathered Q, K, V, and beside them
/// one symmetric buffer with what cannot be stitched. Offsets are the same on every rank.
class Arena {
  public:
    Arena(fabric::Fabric& fabric, const Plan& plan, const Options& options);

    fabric::StitchedTensor& out(int tensor) const {
        return *out_[static_cast<std::size_t>(tensor)];
    }
    int tensors() const { return static_cast<int>(out_.size()); }
    /// Null without `attend`.
    fabric::StitchedTensor* exchange() const { return exchange_.get(); }

    /// Gathered tensors of a rank, as this process maps them.
    View gathered_q(int buffer, int rank) const;
    View gathered_k(int buffer, int rank) const;
    View gathered_v(int buffer, int rank) const;
    /// Where a copied Q goes: the exchange's place when there is one.
    View copied_q(int rank) const;

    View text_out(int buffer, int rank) const;
    LseView lse(int buffer, int rank) const;
    LseView text_lse(int buffer, int rank) const;

    std::byte* kernel_lse(int rank, std::size_t block) const;
    std::byte* kernel_text_lse(int rank) const;
    View packed_out(int rank) const;
    float* rstd(int rank, int which) const;

    std::size_t bytes() const;

  private:
    std::byte* side(int rank, std::size_t offset) const {
        // Null for a rank of another node, with whom nothing on the side is exchanged.
        auto* const base = static_cast<std::byte*>(side_->at(rank));
        return base == nullptr ? nullptr : base + offset;
    }
    std::vector<plan::PutBlock> stored(int source, int dest) const;
    View exchanged(int buffer, int rank, std::size_t offset, std::int64_t rows, int heads) const;

    const fabric::Fabric& fabric_;
    const Plan& plan_;
    std::size_t element_;
    std::vector<std::unique_ptr<fabric::StitchedTensor>> out_;
    std::unique_ptr<fabric::StitchedTensor> exchange_;
    std::unique_ptr<fabric::SymmetricBuffer> side_;

    std::size_t k_at_ = 0, v_at_ = 0;
    std::size_t slot_bytes_ = 0, lse_at_ = 0, text_lse_at_ = 0;
    std::vector<std::size_t> kernel_lse_at_;
    std::size_t kernel_text_lse_at_ = 0, packed_at_ = 0, copied_q_at_ = 0, rstd_at_[2] = {0, 0};
    std::int64_t most_rows_ = 0;
};

}  // namespace xstage::ulysses
