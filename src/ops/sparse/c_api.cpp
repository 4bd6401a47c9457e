#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>

#include "fabric/c_error.hpp"
#include "ops/sparse/engine.hpp"
#include "ops/sparse/handles.hpp"
#include "sparse/mask_shape.hpp"
#include "xstage/sparse/placement.hpp"
#include "xstage/xstage_sparse.h"

using namespace xstage;
using fabric::guarded;

struct xstage_block_sparse {
    std::shared_ptr<const sparse::BlockMask> mask;
    ulysses::AttentionCall call;
    ops::MaskedAttention run;
    std::mutex mutex;  ///< a plan is bound and launched in one piece
};

namespace {

[[noreturn]] void bad(const std::string& what) {
    throw Error(ErrorKind::kBadInput, what);
}

ulysses::View view_of(const xstage_view& v) {
    return {v.data, v.batch_stride, v.row_stride, v.head_stride};
}

const sparse::BlockMask& existing(const xstage_block_mask* mask) {
    if (mask == nullptr) bad("mask must not be NULL");
    return *mask->mask;
}

xstage_block_mask* handle_of(sparse::BlockMask mask) {
    return new xstage_block_mask{std::make_shared<const sparse::BlockMask>(std::move(mask))};
}

void bind(ulysses::AttentionCall& call, const xstage_block_sparse_tensors& t) {
    if (t.q.data == nullptr || t.k.data == nullptr || t.v.data == nullptr || t.out.data == nullptr)
        bad("q, k, v and out must not be NULL");
    call.q = view_of(t.q);
    call.k = view_of(t.k);
    call.v = view_of(t.v);
    call.out = view_of(t.out);
    call.lse = {t.lse, call.heads_q * call.rows_q, call.rows_q};
}

ulysses::AttentionCall call_of(const xstage_block_sparse_options& o,
                               const sparse::BlockMask& mask) {
    ulysses::AttentionCall c;
    if (o.dtype != XSTAGE_F16 && o.dtype != XSTAGE_BF16 && o.dtype != XSTAGE_F32)
        bad("dtype must be F16 or BF16, or F32 on the host");
    if (o.batch < 1 || o.heads_q < 1 || o.heads_kv < 1 || o.head_dim < 1 ||
        o.heads_q % o.heads_kv != 0)
        bad(fmt::format("batch {}, {} query heads over {} key heads, head_dim {}", o.batch,
                        o.heads_q, o.heads_kv, o.head_dim));
    if (!(o.scale >= 0) || std::isinf(o.scale)) bad("scale must be positive, or 0");
    sparse::require_fit(mask, {o.batch, o.heads_q, o.heads_kv, o.rows_q, o.rows_kv});
    c.batch = o.batch;
    c.rows_q = o.rows_q;
    c.rows_kv = o.rows_kv;
    c.heads_q = o.heads_q;
    c.heads_kv = o.heads_kv;
    c.head_dim = o.head_dim;
    c.dtype = static_cast<fabric::DType>(o.dtype);
    c.scale = o.scale > 0 ? o.scale : 1 / std::sqrt(static_cast<float>(o.head_dim));
    bind(c, o.tensors);
    return c;
}

}  // namespace

int xstage_block_mask_create(int32_t batches, int32_t heads, int64_t rows_q, int64_t rows_kv,
                             const uint32_t* bits, xstage_block_mask** mask) {
    return guarded([&] {
        if (mask == nullptr) bad("the place for the mask must not be NULL");
        sparse::BlockMask all(batches, heads, rows_q, rows_kv, true);
        if (bits != nullptr)
            all =
                sparse::mask_from_bits(batches, heads, rows_q, rows_kv, {bits, all.bits().size()});
        *mask = handle_of(std::move(all));
    });
}

void xstage_block_mask_destroy(xstage_block_mask* mask) {
    delete mask;
}

int xstage_block_mask_with_dense(const xstage_block_mask* mask, int64_t first, int64_t last,
                                 xstage_block_mask** result) {
    return guarded([&] {
        if (result == nullptr) bad("the place for the mask must not be NULL");
        sparse::BlockMask copy = existing(mask);
        copy.keep_dense(first, last);
        *result = handle_of(std::move(copy));
    });
}

int xstage_block_mask_bits(const xstage_block_mask* mask, uint32_t* bits) {
    return guarded([&] {
        const std::vector<std::uint32_t>& from = existing(mask).bits();
        if (bits == nullptr) bad("bits must not be NULL");
        std::copy(from.begin(), from.end(), bits);
    });
}

int xstage_block_mask_density(const xstage_block_mask* mask, int32_t batch, int32_t head,
                              double* density) {
    return guarded([&] {
        const sparse::BlockMask& m = existing(mask);
        if (density == nullptr) bad("density must not be NULL");
        if (batch == -1 && head == -1) {
            *density = m.density();
            return;
        }
        if (batch < 0 || batch >= m.batches() || head < 0 || head >= m.heads())
            bad(fmt::format("there is no batch {} and head {}", batch, head));
        *density = m.density(batch, head);
    });
}

int xstage_block_mask_heads(const xstage_block_mask* mask, const int32_t* order, int32_t count,
                            xstage_block_mask** result) {
    return guarded([&] {
        const sparse::BlockMask& m = existing(mask);
        if (order == nullptr || result == nullptr) bad("order and result must not be NULL");
        const auto words = static_cast<std::size_t>(m.q_blocks() * m.words());
        std::vector<std::uint32_t> bits;
        for (std::int64_t b = 0; b < m.batches(); ++b) {
            for (std::int32_t i = 0; i < count; ++i) {
                if (order[i] < 0 || order[i] >= m.heads())
                    bad(fmt::format("there is no head {}", order[i]));
                const std::uint32_t* from = m.row(b, order[i], 0).data();
                bits.insert(bits.end(), from, from + words);
            }
        }
        *result =
            handle_of(sparse::mask_from_bits(m.batches(), count, m.q_rows(), m.kv_rows(), bits));
    });
}

int xstage_block_mask_balance(const xstage_block_mask* mask, int32_t ranks, int32_t* order,
                              double load[2]) {
    return guarded([&] {
        const sparse::BlockMask& m = existing(mask);
        if (order == nullptr || load == nullptr) bad("order and load must not be NULL");
        std::vector<double> loads(static_cast<std::size_t>(m.heads()));
        for (std::int64_t b = 0; b < m.batches(); ++b)
            for (std::int64_t h = 0; h < m.heads(); ++h)
                loads[static_cast<std::size_t>(h)] += m.density(b, h);
        const sparse::Placement placed = sparse::place_heads(loads, ranks);
        const std::size_t each = loads.size() / static_cast<std::size_t>(ranks);
        double largest = 0;
        for (auto run = loads.begin(); run != loads.end(); run += static_cast<std::ptrdiff_t>(each))
            largest = std::max(largest,
                               std::accumulate(run, run + static_cast<std::ptrdiff_t>(each), 0.0));
        load[0] = placed.mean > 0 ? largest / placed.mean : 1;
        load[1] = placed.mean > 0 ? placed.largest / placed.mean : 1;
        std::iota(order, order + m.heads(), 0);
        std::stable_sort(order, order + m.heads(), [&](int a, int b) {
            return placed.rank_of[static_cast<std::size_t>(a)] <
                   placed.rank_of[static_cast<std::size_t>(b)];
        });
    });
}

int xstage_block_sparse_create(const xstage_block_sparse_options* given,
                               xstage_block_sparse** plan) {
    return guarded([&] {
        if (plan == nullptr) bad("the place for the plan must not be NULL");
        const xstage_block_sparse_options o = fabric::sized(given);
        auto made = std::make_unique<xstage_block_sparse>();
        made->call = call_of(o, existing(o.mask));
        made->mask = o.mask->mask;
        made->call.mask = made->mask.get();
        if (o.on_host != 0) {
            made->run = ulysses::reference_attention;
        } else {
            made->run = ops::masked_on_gpu(made->call);
        }
        *plan = made.release();
    });
}

void xstage_block_sparse_destroy(xstage_block_sparse* plan) {
    delete plan;
}

int xstage_block_sparse_attention(xstage_block_sparse* plan,
                                  const xstage_block_sparse_tensors* tensors, void* stream) {
    return guarded([&] {
        if (plan == nullptr) bad("plan must not be NULL");
        const std::lock_guard<std::mutex> lock(plan->mutex);
        if (tensors != nullptr) bind(plan->call, *tensors);
        plan->call.stream = stream;
        plan->run(plan->call);
    });
}
