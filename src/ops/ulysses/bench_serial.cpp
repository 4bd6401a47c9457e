// What there is without stitched outputs: attention alone, and NCCL behind it.

#include <cmath>

#include "ops/ulysses/bench_run.hpp"

namespace xstage::ulysses {

/// A local rank's heads over all rows, into packed memory of its own.
AttentionCall RankBench::whole_call(std::size_t local, const Problem& p) {
    AttentionCall call;
    call.rank = group_->local_ranks()[local];
    call.rows_q = call.rows_kv = p.image_q();
    call.heads_q = call.heads_kv = heads_.q[static_cast<std::size_t>(call.rank)].count();
    call.head_dim = p.head_dim;
    call.scale = 1.0f / std::sqrt(static_cast<float>(p.head_dim));
    call.q = gathered_[local].q;
    call.k = gathered_[local].k;
    call.v = gathered_[local].v;
    call.out = packed(
        buffer(static_cast<std::size_t>(call.rows_q * call.heads_q * p.head_dim) * 2, 1).get(),
        call.rows_q, call.heads_q, p.head_dim);
    call.stream = stream_;
    return call;
}

void RankBench::add_alone(const Problem& p) {
    std::vector<AttentionCall> calls;
    for (std::size_t i = 0; i < gathered_.size(); ++i) calls.push_back(whole_call(i, p));
    add("attention alone", [this, calls] {
        for (const AttentionCall& c : calls) plug_.run(c);
    });
}

/// Attention, NCCL's exchange of [rows of p, own heads] pieces, and a kernel that brings heads
/// beside each other.
void RankBench::add_nccl(const Problem& p) {
    const int world = p.world();
    const auto me = static_cast<std::size_t>(rank_);
    const std::int64_t width = std::int64_t{heads_.q[me].count()} * p.head_dim;
    const AttentionCall call = whole_call(0, p);
    auto* packed_out = static_cast<std::byte*>(call.out.data);
    const std::size_t final_bytes = static_cast<std::size_t>(p.rows_q[me] * p.pitch()) * 2;
    auto* staging = static_cast<std::byte*>(buffer(final_bytes, 1).get());
    auto* out = static_cast<std::byte*>(buffer(final_bytes, 1).get());
    std::vector<Nccl::Piece> pieces;
    std::vector<RowScatter> relayouts;
    std::size_t sent = 0, received = 0;
    for (int r = 0; r < world; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const std::size_t to = static_cast<std::size_t>(p.rows_q[i] * width) * 2;
        const std::size_t their_row =
            static_cast<std::size_t>(heads_.q[i].count()) * p.head_dim * 2;
        const std::size_t from = static_cast<std::size_t>(p.rows_q[me]) * their_row;
        pieces.push_back({packed_out + sent, to, staging + received, from});
        RowScatter s;
        s.world = 1;
        s.from = staging + received;
        s.from_row = static_cast<std::int64_t>(their_row);
        s.to[0] = out + static_cast<std::size_t>(heads_.q[i].begin) * p.head_dim * 2;
        s.to_row = p.pitch() * 2;
        s.rows[0] = p.rows_q[me];
        s.bytes = static_cast<int>(their_row);
        relayouts.push_back(s);
        sent += to;
        received += from;
    }
    View view{out, 0, p.pitch(), p.head_dim};
    add(
        "serial nccl",
        [this, call, pieces, relayouts] {
            plug_.run(call);
            nccl_->all_to_all(pieces, stream_);
            for (const RowScatter& s : relayouts) mover_->move(s, 0, stream_);
        },
        {}, [view](int) { return view; });
}

}  // namespace xstage::ulysses
