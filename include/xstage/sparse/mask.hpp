#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace xstage::sparse {

/// Rows and columns of one block of an attention mask.
inline constexpr int kBlock = 128;

constexpr std::int64_t blocks_of(std::int64_t rows) {
    return (rows + kBlock - 1) / kBlock;
}

/// Which blocks of 128 query rows x 128 keys are computed, one bit each: per (batch, head, query
/// block) a row of 32-bit words, key block v in bit v % 32 of word v / 32. Unused bits are 0.
class BlockMask {
  public:
    BlockMask() = default;
    /// Every block is `kept`. Throws Error (kBadInput) for sizes below 1 or above 2^31 rows in all.
    BlockMask(std::int64_t batches, std::int64_t heads, std::int64_t q_rows, std::int64_t kv_rows,
              bool kept = false);

    std::int64_t batches() const { return batches_; }
    std::int64_t heads() const { return heads_; }
    std::int64_t q_rows() const { return q_rows_; }
    std::int64_t kv_rows() const { return kv_rows_; }
    std::int64_t q_blocks() const { return blocks_of(q_rows_); }
    std::int64_t key_blocks() const { return blocks_of(kv_rows_); }
    std::int64_t words() const { return (key_blocks() + 31) / 32; }  ///< per row

    bool test(std::int64_t batch, std::int64_t head, std::int64_t u, std::int64_t v) const {
        return row(batch, head, u)[static_cast<std::size_t>(v / 32)] >> (v % 32) & 1;
    }
    void set(std::int64_t batch, std::int64_t head, std::int64_t u, std::int64_t v,
             bool kept = true);
    std::span<const std::uint32_t> row(std::int64_t batch, std::int64_t head,
                                       std::int64_t u) const {
        return {bits_.data() + offset(batch, head, u), static_cast<std::size_t>(words())};
    }
    /// All rows, in the order [batch][head][query block][word].
    const std::vector<std::uint32_t>& bits() const { return bits_; }

    /// Keeps everything that query rows [first, last) attend to, and everything that attends to
    /// keys [first, last): text or audio tokens among video ones. Clipped to the mask's rows.
    void keep_dense(std::int64_t first, std::int64_t last);

    /// Number of keys that a row of blocks attends to; the last block may be short.
    std::int64_t keys(std::int64_t batch, std::int64_t head, std::int64_t u) const;
    /// Kept share of the query-key pairs.
    double density(std::int64_t batch, std::int64_t head) const;
    double density() const;
    /// Whether every block kept here is kept in `other` as well; the shapes must be equal.
    bool within(const BlockMask& other) const;

    bool operator==(const BlockMask&) const = default;

  private:
    friend BlockMask mask_from_bits(std::int64_t batches, std::int64_t heads, std::int64_t q_rows,
                                    std::int64_t kv_rows, std::span<const std::uint32_t> bits);
    std::size_t offset(std::int64_t batch, std::int64_t head, std::int64_t u) const {
        return static_cast<std::size_t>(((batch * heads_ + head) * q_blocks() + u) * words());
    }

    std::int64_t batches_ = 0, heads_ = 0, q_rows_ = 0, kv_rows_ = 0;
    std::vector<std::uint32_t> bits_;
};

/// A mask from words packed as in BlockMask::bits. Throws Error (kBadInput) if there are too few or
/// too many, or a bit behind the last key block is set.
BlockMask mask_from_bits(std::int64_t batches, std::int64_t heads, std::int64_t q_rows,
                         std::int64_t kv_rows, std::span<const std::uint32_t> bits);

}  // namespace xstage::sparse
