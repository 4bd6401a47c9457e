#include <cstddef>

#include "fabric/c_error.hpp"
#include "xstage/attention.hpp"
#include "xstage/sparse/mask.hpp"
#include "xstage/xstage_sparse.h"

using namespace xstage;

struct xstage_block_sparse {
    AttentionPlan plan;
};

namespace {

[[noreturn]] void bad(const char* what) {
    throw Error(ErrorKind::kBadInput, what);
}

AttentionView view_of(const xstage_view& v) {
    return {v.data, v.batch_stride, v.row_stride, v.head_stride};
}

AttentionArguments arguments_of(const xstage_block_sparse_options& o) {
    AttentionArguments a;
    if (o.dtype != XSTAGE_F16 && o.dtype != XSTAGE_BF16) bad("dtype must be F16 or BF16");
    a.type = o.dtype == XSTAGE_F16 ? AttentionType::kFp16 : AttentionType::kBf16;
    a.head_dim = o.head_dim;
    a.batches = o.batch;
    a.heads = o.heads_q;
    a.kv_heads = o.heads_kv;
    a.q_rows = o.rows_q;
    a.kv_rows = o.rows_kv;
    a.q = view_of(o.q);
    a.k = view_of(o.k);
    a.v = view_of(o.v);
    a.out = {{view_of(o.out), o.rows_q}};
    a.lse = o.lse;
    a.scale = o.scale;
    return a;
}

}  // namespace

int xstage_block_sparse_create(const xstage_block_sparse_options* options,
                               xstage_block_sparse** plan) {
    return fabric::guarded([&] {
        if (options == nullptr || plan == nullptr) bad("options and plan must not be NULL");
        if (options->struct_size < sizeof *options) bad("options.struct_size is too small");
        if (options->mask == nullptr) bad("mask must not be NULL");
        AttentionArguments a = arguments_of(*options);
        const sparse::BlockMask shape(options->mask_batch, options->mask_heads, a.q_rows,
                                      a.kv_rows);
        const sparse::BlockMask mask =
            sparse::mask_from_bits(options->mask_batch, options->mask_heads, a.q_rows, a.kv_rows,
                                   {options->mask, shape.bits().size()});
        a.mask = &mask;
        *plan = new xstage_block_sparse{AttentionPlan(a)};
    });
}

void xstage_block_sparse_destroy(xstage_block_sparse* plan) {
    delete plan;
}

int xstage_block_sparse_attention(const xstage_block_sparse* plan, void* stream) {
    return fabric::guarded([&] {
        if (plan == nullptr) bad("plan must not be NULL");
        plan->plan.launch(stream);
    });
}
