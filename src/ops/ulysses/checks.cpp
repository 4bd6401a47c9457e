#include <fmt/format.h>

#include "xstage/error.hpp"
#include "xstage/ulysses/plan.hpp"

namespace xstage::ulysses {
namespace {

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

void check_rows(const std::vector<std::int64_t>& rows, const char* what) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (rows[r] < 0) bad(fmt::format("{}: rank {} has {} rows", what, r, rows[r]));
        // Below 2^40 no product of rows, heads, dimension and element size overflows 64 bits.
        if (rows[r] > std::int64_t{1} << 40)
            bad(fmt::format("{}: rank {} has {} rows, more than 2^40", what, r, rows[r]));
    }
}

}  // namespace

void check(const Problem& p) {
    if (p.world() < 1 || p.world() > fabric::kMaxRanks)
        bad(fmt::format("rows_q names {} ranks; a group has 1 to {}", p.world(),
                        fabric::kMaxRanks));
    if (p.batch < 1) bad(fmt::format("a batch of {}", p.batch));
    if (p.heads_q < 1 || p.kv_heads() < 1 || p.heads_q % p.kv_heads() != 0)
        bad(fmt::format("{} query heads are not a multiple of {} key heads", p.heads_q,
                        p.kv_heads()));
    if (p.head_dim < 2 || p.head_dim % 2 != 0 || p.head_dim > 1024)
        bad(fmt::format("head_dim {} is not an even number up to 1024", p.head_dim));
    if (p.dtype != fabric::DType::kBf16 && p.dtype != fabric::DType::kF16 &&
        p.dtype != fabric::DType::kF32)
        bad("attention works on bf16, fp16 or fp32");
    check_rows(p.rows_q, "rows_q");
    check_rows(p.rows_kv, "rows_kv");
    if (!p.rows_kv.empty() && p.rows_kv.size() != p.rows_q.size())
        bad(fmt::format("rows_kv names {} ranks, rows_q {}", p.rows_kv.size(), p.rows_q.size()));
    if (p.text_q < 0 || p.text_kv < 0) bad("a negative number of text rows");
    if (p.image_q() == 0) bad("no rank has a query row");
    if (p.image_kv() + p.text_kv == 0) bad("there is no key");
    if (p.with_lengths && p.text_kv > 0 && p.text_place == TextPlace::kFront)
        bad("key lengths count from the first key, so text of varying length must stand last: use "
            "TextPlace::kRear (the order of keys does not matter to attention)");
    if (p.pitch() < std::int64_t{p.heads_q} * p.head_dim)
        bad(fmt::format("out_pitch {} is less than a row of {} heads of {}", p.pitch(), p.heads_q,
                        p.head_dim));
    if (p.pitch() * static_cast<std::int64_t>(fabric::bytes_of(p.dtype)) % 16 != 0)
        bad(fmt::format("out_pitch {} is not a multiple of 16 bytes, which tensor maps need",
                        p.pitch()));
}

}  // namespace xstage::ulysses
