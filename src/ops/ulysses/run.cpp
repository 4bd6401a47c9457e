// One call: the attention kernel over the plan's blocks, and the rows that cannot be stitched.

#include <cmath>

#include "ops/ulysses/impl.hpp"

namespace xstage::ulysses {
namespace {

std::byte* bytes_at(const View& view) {
    return static_cast<std::byte*>(view.data);
}

View shifted(View view, std::int64_t elements, std::size_t element) {
    view.data = bytes_at(view) + elements * static_cast<std::int64_t>(element);
    return view;
}

}  // namespace

int UlyssesAttention::Impl::turn() {
    const int buffer = next_buffer;
    next_buffer = (next_buffer + 1) % options.buffers;
    return buffer;
}

void UlyssesAttention::Impl::begin_out(int buffer, const fabric::Streams& streams) {
    for (int t = 0; t < arena->tensors(); ++t) arena->out(t).begin(buffer, streams);
}

AttentionCall UlyssesAttention::Impl::call_for(const Ready& ready, int local, void* stream) const {
    const Problem& p = plan.problem;
    const auto rank =
        static_cast<std::size_t>(fabric.local_ranks()[static_cast<std::size_t>(local)]);
    AttentionCall call;
    call.rank = static_cast<int>(rank);
    call.batch = p.batch;
    call.rows_kv = p.image_kv() + p.text_kv;
    call.heads_q = plan.heads.q[rank].count();
    call.heads_kv = plan.heads.kv[rank].count();
    call.head_dim = p.head_dim;
    call.dtype = p.dtype;
    call.scale = ready.scale != 0 ? ready.scale : 1.0f / std::sqrt(static_cast<float>(p.head_dim));
    call.q = ready.q;
    call.k = ready.k;
    call.v = ready.v;
    call.kv_lengths = ready.kv_lengths;
    call.kv_lengths_stride = 1;
    call.stream = stream;
    return call;
}

/// A scatter with this rank's heads as columns of everybody's rows.
RowScatter UlyssesAttention::Impl::rows_to_all(int rank) const {
    RowScatter s;
    s.world = plan.problem.world();
    s.first = (rank + 1) % s.world;
    s.batch = plan.problem.batch;
    s.dtype = plan.problem.dtype;
    s.from_map.world = s.to_map.world = s.world;
    return s;
}

void UlyssesAttention::Impl::bring_q_in_order(Ready& ready, int local,
                                              const fabric::Streams& streams) {
    const Problem& p = plan.problem;
    const int rank = fabric.local_ranks()[static_cast<std::size_t>(local)];
    const auto e = static_cast<std::int64_t>(fabric::bytes_of(p.dtype));
    const bool front = p.text_place == TextPlace::kFront;
    RowScatter s = rows_to_all(rank);
    std::int64_t next = front ? p.text_q : 0;
    bool in_order = !plan.copies_q && plan.q_map.unit_rows == 0;
    for (int r = 0; r < p.world(); ++r) {
        s.from_map.start[r] = next;
        in_order = in_order && plan.q_map.start[r] == next;
        next += p.rows_q[static_cast<std::size_t>(r)];
    }
    in_order = in_order && (p.text_q == 0 || plan.q_text_row == (front ? 0 : next));
    if (in_order || (plan.own_q && ready.q.data == arena->gathered_q(0, rank).data)) return;

    // A foreign Q in memory of ours: pad rows stay as they are, whatever they hold.
    const View to = plan.own_q ? arena->gathered_q(0, rank) : arena->copied_q(rank);
    s.from = bytes_at(ready.q);
    s.from_batch = ready.q.batch_stride * e;
    s.from_row = ready.q.row_stride * e;
    s.from_head = ready.q.head_stride * e;
    s.to_map = plan.q_map;
    s.to_row = to.row_stride * e;
    s.to_head = to.head_stride * e;
    s.heads = plan.heads.q[static_cast<std::size_t>(rank)].count();
    s.bytes = static_cast<int>(p.head_dim * e);
    for (int r = 0; r < p.world(); ++r) {
        s.to[r] = bytes_at(to);
        s.to_batch[r] = to.batch_stride * e;
        s.rows[r] = p.rows_q[static_cast<std::size_t>(r)];
    }
    void* stream = mover->stream(streams, local);
    mover->move(s, local, stream);
    if (p.text_q > 0) {
        RowScatter text = s;
        text.world = 1;
        text.first = 0;
        text.rows[0] = p.text_q;
        text.from_map = text.to_map = {};
        text.from_map.start[0] = front ? 0 : next;
        text.to_map.start[0] = plan.q_text_row;
        mover->move(text, local, stream);
    }
    ready.q = to;
}

void UlyssesAttention::Impl::attend_text(const Ready& ready, int local, int buffer, void* stream) {
    const Problem& p = plan.problem;
    const std::size_t e = fabric::bytes_of(p.dtype);
    AttentionCall call = call_for(ready, local, stream);
    call.rows_q = p.text_q;
    call.q = shifted(ready.q, plan.q_text_row * ready.q.row_stride, e);
    call.out = arena->text_out(buffer, call.rank);
    call.out = shifted(
        call.out,
        std::int64_t{plan.heads.q[static_cast<std::size_t>(call.rank)].begin} * p.head_dim, e);
    if (p.with_lse)
        call.lse = {reinterpret_cast<float*>(arena->kernel_text_lse(call.rank)),
                    call.heads_q * p.text_q, p.text_q};
    options.plug.run(call);
    send_text(local, buffer, call.out, stream);
    if (p.with_lse)
        send_text_lse(local, buffer, arena->kernel_text_lse(call.rank), p.text_q, 0, stream);
}

/// Replicated rows go to every peer; this rank's own copy is where the kernel has stored it.
void UlyssesAttention::Impl::send_text(int local, int buffer, const View& from, void* stream) {
    const Problem& p = plan.problem;
    const auto e = static_cast<std::int64_t>(fabric::bytes_of(p.dtype));
    const auto rank =
        static_cast<std::size_t>(fabric.local_ranks()[static_cast<std::size_t>(local)]);
    RowScatter s = rows_to_all(static_cast<int>(rank));
    s.from = bytes_at(from);
    s.from_batch = from.batch_stride * e;
    s.from_row = from.row_stride * e;
    s.from_head = from.head_stride * e;
    s.to_head = p.head_dim * e;
    s.heads = plan.heads.q[rank].count();
    for (int r = 0; r < p.world(); ++r) {
        const View to = arena->text_out(buffer, r);
        std::byte* place = bytes_at(to) + plan.heads.q[rank].begin * p.head_dim * e;
        s.to[r] = place == s.from ? nullptr : place;
        s.to_batch[r] = to.batch_stride * e;
        s.to_row = to.row_stride * e;
        s.rows[r] = p.text_q;
    }
    s.bytes = static_cast<int>(p.head_dim * e);
    mover->move(s, local, stream);
}

void UlyssesAttention::Impl::send_text_lse(int local, int buffer, const std::byte* from,
                                           std::int64_t rows, std::int64_t row, void* stream) {
    const Problem& p = plan.problem;
    const auto rank =
        static_cast<std::size_t>(fabric.local_ranks()[static_cast<std::size_t>(local)]);
    RowScatter s = rows_to_all(static_cast<int>(rank));
    s.from = from;
    s.heads = plan.heads.q[rank].count();
    s.from_row = s.to_row = s.bytes = sizeof(float);
    s.from_head = rows * s.bytes;
    s.from_batch = s.from_head * s.heads;
    s.rows_inside = true;
    for (int r = 0; r < p.world(); ++r) {
        const LseView to = arena->text_lse(buffer, r);
        s.from_map.start[r] = row;
        s.to[r] = reinterpret_cast<std::byte*>(to.data + plan.heads.q[rank].begin * to.head_stride);
        s.to_batch[r] = to.batch_stride * s.bytes;
        s.to_head = to.head_stride * s.bytes;
        s.rows[r] = p.text_q;
    }
    mover->move(s, local, stream);
}

/// LSE of one block of the plan, or of all rows of all samples of a packed call (block == blocks).
void UlyssesAttention::Impl::send_lse(int local, int buffer, std::size_t block, void* stream) {
    const Problem& p = plan.problem;
    const auto rank =
        static_cast<std::size_t>(fabric.local_ranks()[static_cast<std::size_t>(local)]);
    const bool whole = block == plan.blocks.size();
    const Block b = whole ? Block{0, 1, plan.q_rows} : plan.blocks[block];
    RowScatter s = rows_to_all(static_cast<int>(rank));
    s.from = arena->kernel_lse(static_cast<int>(rank), whole ? 0 : block);
    s.heads = plan.heads.q[rank].count();
    s.from_row = s.to_row = s.bytes = sizeof(float);
    s.from_head = b.rows * s.bytes;
    s.from_batch = s.from_head * s.heads;
    s.batch = whole ? p.batch : 1;
    s.rows_inside = true;
    const bool axis = whole || plan.layout == Layout::kPadded || plan.layout == Layout::kPages ||
                      plan.layout == Layout::kPeers;
    if (axis) s.from_map = plan.q_map;
    for (int r = 0; r < p.world(); ++r) {
        const int index = axis ? 0 : static_cast<int>(b.out_offset / b.out_batch_bytes);
        // Not a destination of this call.
        if (!axis && (r < index || r >= index + b.batch)) continue;
        if (axis) {
            s.from_map.start[r] -= b.q_row;  // the kernel counts from the call's first row
        } else {
            s.from_map.start[r] = std::int64_t{r - index} * s.heads * b.rows;
        }
        const LseView to = arena->lse(buffer, r);
        s.to[r] = reinterpret_cast<std::byte*>(to.data + b.sample * to.batch_stride +
                                               plan.heads.q[rank].begin * to.head_stride);
        s.to_batch[r] = to.batch_stride * s.bytes;
        s.to_head = to.head_stride * s.bytes;
        s.rows[r] = p.rows_q[static_cast<std::size_t>(r)];
    }
    mover->move(s, local, stream);
}

void UlyssesAttention::Impl::attend_blocks(const Ready& ready, int local, int buffer,
                                           void* stream) {
    const Problem& p = plan.problem;
    const std::size_t e = fabric::bytes_of(p.dtype);
    for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
        const Block& b = plan.blocks[i];
        AttentionCall call = call_for(ready, local, stream);
        const auto rank = static_cast<std::size_t>(call.rank);
        call.batch = b.batch;
        call.rows_q = b.rows;
        call.q =
            shifted(ready.q, b.sample * ready.q.batch_stride + b.q_row * ready.q.row_stride, e);
        call.q.batch_stride = b.q_batch_rows * ready.q.row_stride;
        call.k = shifted(ready.k, b.sample * ready.k.batch_stride, e);
        call.v = shifted(ready.v, b.sample * ready.v.batch_stride, e);
        call.k.batch_stride = call.v.batch_stride = 0;
        if (call.kv_lengths != nullptr) call.kv_lengths += b.sample;
        call.kv_lengths_stride = 0;
        add_mask(call, local, b.sample);
        call.out.data = static_cast<std::byte*>(arena->out(b.tensor).range(buffer)) + b.out_offset +
                        static_cast<std::size_t>(plan.heads.q[rank].begin * p.head_dim) * e;
        call.out.batch_stride = static_cast<std::int64_t>(b.out_batch_bytes / e);
        call.out.row_stride = static_cast<std::int64_t>(b.out_row_bytes / e);
        call.out.head_stride = p.head_dim;
        if (plan.layout == Layout::kPeers) name_peers(call, b.sample, buffer);
        if (p.with_lse)
            call.lse = {reinterpret_cast<float*>(arena->kernel_lse(call.rank, i)),
                        call.heads_q * b.rows, b.rows};
        options.plug.run(call);
        if (p.with_lse) send_lse(local, buffer, i, stream);
    }
}

/// Every rank's rows of a sample, at this rank's heads.
void UlyssesAttention::Impl::name_peers(AttentionCall& call, int sample, int buffer) const {
    const Problem& p = plan.problem;
    const std::size_t e = fabric::bytes_of(p.dtype);
    const fabric::StitchedTensor& out = arena->out(0);
    const std::int64_t head = plan.heads.q[static_cast<std::size_t>(call.rank)].begin;
    call.out = {};
    call.peers = p.world();
    for (int r = 0; r < p.world(); ++r) {
        View& to = call.peer_out[r];
        to.data = static_cast<std::byte*>(out.range(buffer)) + out.layout().offset_of(r, 0) +
                  plan.receive_offset(sample, 0, r) +
                  static_cast<std::size_t>(head * p.head_dim) * e;
        to.row_stride = static_cast<std::int64_t>(plan.out_row_bytes() / e);
        to.head_stride = p.head_dim;
        call.peer_rows[r] = p.rows_q[static_cast<std::size_t>(r)];
    }
}

/// For a kernel that returns its output packed: one call, and a kernel of ours sends the rows.
void UlyssesAttention::Impl::attend_packed(const Ready& ready, int local, int buffer,
                                           void* stream) {
    const Problem& p = plan.problem;
    const auto e = static_cast<std::int64_t>(fabric::bytes_of(p.dtype));
    AttentionCall call = call_for(ready, local, stream);
    const auto rank = static_cast<std::size_t>(call.rank);
    call.rows_q = plan.q_rows;
    call.out = arena->packed_out(call.rank);
    add_mask(call, local, 0);
    if (p.with_lse)
        call.lse = {reinterpret_cast<float*>(arena->kernel_lse(call.rank, 0)),
                    call.heads_q * plan.q_rows, plan.q_rows};
    View result = call.out;
    if (!options.plug.stores_to_out) call.own_out = &result;
    options.plug.run(call);
    call.out = result;

    RowScatter s = rows_to_all(call.rank);
    s.from = bytes_at(call.out);
    s.from_batch = call.out.batch_stride * e;
    s.from_row = call.out.row_stride * e;
    s.from_head = call.out.head_stride * e;
    s.from_map = plan.q_map;
    s.to_row = static_cast<std::int64_t>(plan.out_row_bytes());
    s.to_head = p.head_dim * e;
    s.heads = call.heads_q;
    s.bytes = static_cast<int>(p.head_dim * e);
    const fabric::StitchedTensor& out = arena->out(0);
    for (int r = 0; r < p.world(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (p.rows_q[i] == 0) continue;
        s.to[r] = static_cast<std::byte*>(out.range(buffer)) + out.layout().offset_of(r, 0) +
                  plan.heads.q[rank].begin * p.head_dim * e;
        s.to_batch[r] = static_cast<std::int64_t>(plan.receive_batch_bytes(r));
        s.rows[r] = p.rows_q[i];
    }
    mover->move(s, local, stream);
    if (p.text_q > 0)
        send_text(
            local, buffer,
            shifted(call.out, plan.q_text_row * call.out.row_stride, static_cast<std::size_t>(e)),
            stream);
    if (!p.with_lse) return;
    send_lse(local, buffer, plan.blocks.size(), stream);
    if (p.text_q > 0)
        send_text_lse(local, buffer, arena->kernel_lse(call.rank, 0), plan.q_rows, plan.q_text_row,
                      stream);
}

std::vector<Result> UlyssesAttention::Impl::run(const std::vector<Ready>& ready, int buffer,
                                                const fabric::Streams& streams) {
    for (std::size_t i = 0; i < ready.size(); ++i) {
        const int local = static_cast<int>(i);
        mover->select(local);
        void* stream = mover->stream(streams, local);
        if (plan.layout == Layout::kScatter) {
            attend_packed(ready[i], local, buffer, stream);
            continue;
        }
        // Text first: its rows leave while the image rows are computed.
        if (plan.problem.text_q > 0) attend_text(ready[i], local, buffer, stream);
        attend_blocks(ready[i], local, buffer, stream);
    }
    Pending done{buffer, {}};
    for (const Ready& r : ready) done.to.push_back(r.to);
    if (deferred) {
        for (int t = 0; t < arena->tensors(); ++t) arena->out(t).publish(buffer, streams);
        pending = std::move(done);
        return {};
    }
    for (int t = 0; t < arena->tensors(); ++t) arena->out(t).exchange(buffer, streams);
    return results_of(done, streams);
}

std::vector<Result> UlyssesAttention::Impl::take_results(const fabric::Streams& streams) {
    const Pending done = *pending;
    pending.reset();
    for (int t = 0; t < arena->tensors(); ++t) arena->out(t).acquire(done.buffer, streams);
    return results_of(done, streams);
}

std::vector<Result> UlyssesAttention::Impl::results_of(const Pending& done,
                                                       const fabric::Streams& streams) {
    std::vector<Result> results;
    for (std::size_t i = 0; i < done.to.size(); ++i) {
        const int local = static_cast<int>(i);
        const int rank = fabric.local_ranks()[i];
        copy_out(done.to[i], local, done.buffer, mover->stream(streams, local));
        Result result;
        result.out = out_view(done.buffer, rank);
        for (int s = 0; s < plan.problem.batch; ++s)
            result.samples.push_back(sample_view(done.buffer, rank, s));
        if (done.to[i].out) {
            result.out = done.to[i].out;
            for (int s = 0; s < plan.problem.batch; ++s)
                result.samples[static_cast<std::size_t>(s)] = shifted(
                    result.out, s * result.out.batch_stride, fabric::bytes_of(plan.problem.dtype));
        }
        result.text_out =
            done.to[i].text_out ? done.to[i].text_out : arena->text_out(done.buffer, rank);
        result.lse = arena->lse(done.buffer, rank);
        result.text_lse = arena->text_lse(done.buffer, rank);
        results.push_back(result);
    }
    return results;
}

/// To the caller's memory, with the factors of heads on the way; or the factors alone, in place.
void UlyssesAttention::Impl::copy_out(const Destination& to, int local, int buffer, void* stream) {
    const Problem& p = plan.problem;
    const auto e = static_cast<std::int64_t>(fabric::bytes_of(p.dtype));
    const int rank = fabric.local_ranks()[static_cast<std::size_t>(local)];
    RowScatter s = rows_to_all(rank);
    s.world = 1;
    s.first = 0;
    s.heads = p.heads_q;
    s.bytes = static_cast<int>(p.head_dim * e);
    if (to.text_out && p.text_q > 0) {
        const View from = arena->text_out(buffer, rank);
        RowScatter t = s;
        t.from = bytes_at(from);
        t.from_batch = from.batch_stride * e;
        t.from_row = from.row_stride * e;
        t.from_head = from.head_stride * e;
        t.to[0] = bytes_at(to.text_out);
        t.to_batch[0] = to.text_out.batch_stride * e;
        t.to_row = to.text_out.row_stride * e;
        t.to_head = to.text_out.head_stride * e;
        t.rows[0] = p.text_q;
        mover->move(t, local, stream);
    }
    if ((!to.out && to.head_scale == nullptr) || p.rows_q[static_cast<std::size_t>(rank)] == 0)
        return;
    s.batch = 1;
    s.rows[0] = p.rows_q[static_cast<std::size_t>(rank)];
    for (int sample = 0; sample < p.batch; ++sample) {
        const View from = sample_view(buffer, rank, sample);
        const View place =
            to.out ? shifted(to.out, sample * to.out.batch_stride, static_cast<std::size_t>(e))
                   : from;
        s.from = bytes_at(from);
        s.from_row = from.row_stride * e;
        s.from_head = from.head_stride * e;
        s.to[0] = bytes_at(place);
        s.to_row = place.row_stride * e;
        s.to_head = place.head_stride * e;
        s.scale = static_cast<const std::byte*>(to.head_scale);
        if (s.scale != nullptr) s.scale += sample * to.head_scale_batch * e;
        s.scale_row = to.head_scale_row * e;
        mover->move(s, local, stream);
    }
}

}  // namespace xstage::ulysses
