#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "xstage/error.hpp"
#include "xstage/sparse/mask.hpp"

namespace xstage::sparse {

namespace {

void require(bool condition, const std::string& what) {
    if (!condition) throw Error(ErrorKind::kBadInput, "block mask: " + what);
}

}  // namespace

BlockMask::BlockMask(std::int64_t batches, std::int64_t heads, std::int64_t q_rows,
                     std::int64_t kv_rows, bool kept)
    : batches_(batches), heads_(heads), q_rows_(q_rows), kv_rows_(kv_rows) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    require(batches >= 1 && heads >= 1 && q_rows >= 1 && kv_rows >= 1,
            fmt::format("{} batches, {} heads, {} query rows, {} keys: each must be at least 1",
                        batches, heads, q_rows, kv_rows));
    // The kernel counts words in 32 bits.
    require(batches < kMost && heads < kMost / batches && q_rows < kMost && kv_rows < kMost &&
                q_blocks() < kMost / (batches * heads) &&
                q_blocks() * batches * heads < kMost / words(),
            "too many rows");
    const std::int64_t rows = batches * heads * q_blocks();
    bits_.assign(static_cast<std::size_t>(rows * words()), kept ? ~0U : 0U);
    const std::int64_t used = key_blocks() % 32;
    if (!kept || used == 0) return;
    const std::uint32_t last = (1U << used) - 1;
    for (std::int64_t r = 1; r <= rows; ++r)
        bits_[static_cast<std::size_t>(r * words() - 1)] = last;
}

void BlockMask::set(std::int64_t batch, std::int64_t head, std::int64_t u, std::int64_t v,
                    bool kept) {
    std::uint32_t& word = bits_[offset(batch, head, u) + static_cast<std::size_t>(v / 32)];
    const std::uint32_t bit = 1U << (v % 32);
    word = kept ? word | bit : word & ~bit;
}

void BlockMask::keep_dense(std::int64_t first, std::int64_t last) {
    first = std::max<std::int64_t>(first, 0);
    if (first >= last) return;
    const std::int64_t rows_end = first < q_rows_ ? blocks_of(std::min(last, q_rows_)) : 0;
    const std::int64_t keys_end = first < kv_rows_ ? blocks_of(std::min(last, kv_rows_)) : 0;
    for (std::int64_t b = 0; b < batches_; ++b) {
        for (std::int64_t h = 0; h < heads_; ++h) {
            for (std::int64_t u = 0; u < q_blocks(); ++u) {
                const bool whole = u >= first / kBlock && u < rows_end;
                const std::int64_t begin = whole ? 0 : first / kBlock;
                const std::int64_t end = whole ? key_blocks() : keys_end;
                for (std::int64_t v = begin; v < end; ++v) set(b, h, u, v);
            }
        }
    }
}

std::int64_t BlockMask::keys(std::int64_t batch, std::int64_t head, std::int64_t u) const {
    std::int64_t kept = 0;
    for (const std::uint32_t word : row(batch, head, u)) kept += std::popcount(word);
    const std::int64_t missing = key_blocks() * kBlock - kv_rows_;
    return kept * kBlock - (test(batch, head, u, key_blocks() - 1) ? missing : 0);
}

double BlockMask::density(std::int64_t batch, std::int64_t head) const {
    double pairs = 0;
    for (std::int64_t u = 0; u < q_blocks(); ++u) {
        const std::int64_t rows = std::min<std::int64_t>(kBlock, q_rows_ - u * kBlock);
        pairs += static_cast<double>(rows * keys(batch, head, u));
    }
    return pairs / static_cast<double>(q_rows_) / static_cast<double>(kv_rows_);
}

double BlockMask::density() const {
    double sum = 0;
    for (std::int64_t b = 0; b < batches_; ++b) {
        for (std::int64_t h = 0; h < heads_; ++h) sum += density(b, h);
    }
    return sum / static_cast<double>(batches_ * heads_);
}

bool BlockMask::within(const BlockMask& other) const {
    require(batches_ == other.batches_ && heads_ == other.heads_ && q_rows_ == other.q_rows_ &&
                kv_rows_ == other.kv_rows_,
            "masks of unequal shapes do not compare");
    for (std::size_t i = 0; i < bits_.size(); ++i) {
        if ((bits_[i] & ~other.bits_[i]) != 0) return false;
    }
    return true;
}

BlockMask mask_from_bits(std::int64_t batches, std::int64_t heads, std::int64_t q_rows,
                         std::int64_t kv_rows, std::span<const std::uint32_t> bits) {
    const BlockMask all(batches, heads, q_rows, kv_rows, true);
    require(bits.size() == all.bits().size(),
            fmt::format("{} words given, {} expected", bits.size(), all.bits().size()));
    for (std::size_t i = 0; i < bits.size(); ++i) {
        require((bits[i] & ~all.bits()[i]) == 0, "a bit behind the last key block is set");
    }
    BlockMask mask = all;
    mask.bits_.assign(bits.begin(), bits.end());
    return mask;
}

}  // namespace xstage::sparse
