// The first all-to-all: a rank's projections to the owners of the heads.

#include <fmt/format.h>

#include "ops/ulysses/impl.hpp"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

[[noreturn]] void bad(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

void check_rotary(const Rotary& r, int head_dim, const char* name) {
    if (r.kind == RotaryKind::kNone) return;
    const int dims = r.dims == 0 ? head_dim : r.dims;
    if (dims < 2 || dims % 2 != 0 || dims > head_dim)
        bad(fmt::format("{}: {} rotated dimensions of {}", name, dims, head_dim));
    if (r.cos == nullptr || r.sin == nullptr)
        bad(fmt::format("{}: a rotation without its table", name));
}

void check_projection(const Projection& p, std::int64_t rows, std::int64_t text, int head_dim,
                      const char* name) {
    if (rows > 0 && !p.image) bad(fmt::format("{}: {} rows and no data", name, rows));
    if (text > 0 && !p.text) bad(fmt::format("{}: {} text rows and no data", name, text));
    check_rotary(p.rotary, head_dim, name);
    check_rotary(p.text_rotary, head_dim, name);
}

}  // namespace

void UlyssesAttention::Impl::check_sharded(const ShardedInput& in, int rank) const {
    const Problem& p = plan.problem;
    const std::int64_t rows = p.rows_q[static_cast<std::size_t>(rank)];
    check_projection(in.q, rows, p.text_q, p.head_dim, "q");
    check_projection(in.k, p.kv_rows(rank), p.text_kv, p.head_dim, "k");
    check_projection(in.v, p.kv_rows(rank), p.text_kv, p.head_dim, "v");
    if (p.with_lengths != (in.kv_lengths != nullptr))
        bad(fmt::format("rank {}: the plan says with_lengths = {}", rank, p.with_lengths));
}

void UlyssesAttention::Impl::gather_heads(const ShardedInput& in, int local, int buffer,
                                          const fabric::Streams& streams) {
    void* stream = mover->stream(streams, local);
    // One launch for the image rows, one for text. V is sent as it is, so it leaves first.
    HeadExchange image, text;
    add_projection(in.v, local, buffer, 2, image, text);
    add_projection(in.q, local, buffer, 0, image, text);
    add_projection(in.k, local, buffer, 1, image, text);
    if (image.count > 0) mover->move(image, local, stream);
    if (text.count > 0) mover->move(text, local, stream);
}

/// which: 0 for Q, 1 for K, 2 for V.
void UlyssesAttention::Impl::add_projection(const Projection& from, int local, int buffer,
                                            int which, HeadExchange& image,
                                            HeadExchange& text) const {
    const Problem& p = plan.problem;
    const int rank = fabric.local_ranks()[static_cast<std::size_t>(local)];
    const std::vector<HeadRange>& heads = which == 0 ? plan.heads.q : plan.heads.kv;
    const bool front = which != 0 && p.text_place == TextPlace::kFront;
    HeadScatter s;
    s.dtype = p.dtype;
    s.rank = rank;
    s.world = p.world();
    s.head_dim = p.head_dim;
    s.batch = p.batch;
    s.heads = which == 0 ? p.heads_q : p.kv_heads();
    s.order = options.order;
    s.blocks = options.blocks;
    s.rstd = arena->rstd(rank, which == 1);
    for (int r = 0; r < p.world(); ++r) {
        const View to = which == 0   ? arena->gathered_q(buffer, r)
                        : which == 1 ? arena->gathered_k(buffer, r)
                                     : arena->gathered_v(buffer, r);
        const HeadRange range = heads[static_cast<std::size_t>(r)];
        s.first_head[r] = range.begin;
        s.head_count[r] = range.count();
        s.to[r] = to.data;
        s.to_batch[r] = to.batch_stride;
        s.to_row[r] = to.row_stride;
    }
    s.map = plan.q_map;
    s.map_rank = rank;
    if (which != 0) {
        s.map = {};
        s.map.world = p.world();
        std::int64_t next = front ? p.text_kv : 0;
        for (int r = 0; r < p.world(); ++r) {
            s.map.start[r] = next;
            next += p.kv_rows(r);
        }
    }
    const auto add = [&](HeadExchange& to, const View& view, std::int64_t rows, const Norm& norm,
                         Rotary rotary) {
        if (rows == 0) return;
        if (rotary.dims == 0) rotary.dims = p.head_dim;
        s.from = view.data;
        s.from_batch = view.batch_stride;
        s.from_row = view.row_stride;
        s.from_head = view.head_stride;
        s.rows = rows;
        s.norm = norm;
        s.rotary = rotary;
        to.part[to.count++] = s;
    };
    const std::int64_t rows =
        which == 0 ? p.rows_q[static_cast<std::size_t>(rank)] : p.kv_rows(rank);
    add(image, from.image, rows, from.norm, from.rotary);

    // Text is on every rank already: each takes its own heads.
    for (int r = 0; r < p.world(); ++r)
        if (r != rank) s.head_count[r] = 0;
    s.map = {};
    s.map.world = p.world();
    s.map.start[rank] = which == 0 ? plan.q_text_row : front ? 0 : p.image_kv();
    add(text, from.text, which == 0 ? p.text_q : p.text_kv, from.text_norm, from.text_rotary);
}

}  // namespace xstage::ulysses
