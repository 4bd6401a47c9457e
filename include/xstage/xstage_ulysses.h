/* The C ABI of Ulysses attention; see docs/ulysses.md. Errors as in xstage.h. */
#ifndef XSTAGE_XSTAGE_ULYSSES_H
#define XSTAGE_XSTAGE_ULYSSES_H

#include "xstage/xstage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [batch, rows, heads, head_dim], last dimension contiguous; strides in elements. */
typedef struct xstage_view {
    void* data;
    int64_t batch_stride;
    int64_t row_stride;
    int64_t head_stride;
} xstage_view;

/* fp32 [batch, heads, rows], rows contiguous. */
typedef struct xstage_lse_view {
    float* data;
    int64_t batch_stride;
    int64_t head_stride;
} xstage_lse_view;

/* What an attention kernel is asked to do, by one rank. */
typedef struct xstage_attention_call {
    size_t struct_size;
    int32_t rank;
    int32_t batch;
    int64_t rows_q;
    int64_t rows_kv;
    int32_t heads_q;
    int32_t heads_kv;
    int32_t head_dim;
    int32_t dtype; /* xstage_dtype */
    float scale;
    xstage_view q, k, v, out;  /* k and v have batch stride 0 when all batch indices share them */
    xstage_lse_view lse;       /* data is NULL when nobody wants it */
    const int32_t* kv_lengths; /* NULL: all keys */
    int64_t kv_lengths_stride;
    void* stream; /* cudaStream_t */
    /* Not NULL when `out` is packed scratch (kernel_returns_packed): a kernel that has allocated
     * its own result says here where it stands, and leaves `out` alone. */
    xstage_view* own_out;
} xstage_attention_call;

/* Enqueues attention on call->stream and returns 0. Anything else fails the call. */
typedef int (*xstage_attention_kernel)(void* user, const xstage_attention_call* call);

typedef enum xstage_layout {
    XSTAGE_LAYOUT_AUTO = 0,
    XSTAGE_LAYOUT_BATCHED = 1,
    XSTAGE_LAYOUT_PADDED = 2,
    XSTAGE_LAYOUT_PAGES = 3,
    XSTAGE_LAYOUT_SPLIT = 4,
    XSTAGE_LAYOUT_SCATTER = 5
} xstage_layout;

typedef enum xstage_builtin {
    XSTAGE_BUILTIN_AUTO = 0, /* cuDNN; the reference on the host backend */
    XSTAGE_BUILTIN_CUDNN = 1,
    XSTAGE_BUILTIN_XSTAGE = 2, /* Hopper, bf16 and fp16, head_dim 64 or 128 */
    XSTAGE_BUILTIN_REFERENCE = 3
} xstage_builtin;

typedef struct xstage_ulysses_options {
    size_t struct_size;
    int32_t batch;
    int32_t heads_q;
    int32_t heads_kv; /* 0: heads_q */
    int32_t head_dim;
    const int64_t* rows_q;  /* per rank */
    const int64_t* rows_kv; /* NULL: rows_q */
    int64_t text_q;         /* rows that all ranks hold */
    int64_t text_kv;
    int32_t text_front; /* 0: text stands last */
    int32_t dtype;
    int32_t with_lse;
    int32_t with_lengths;
    int64_t out_pitch; /* 0: heads_q * head_dim */
    int32_t layout;
    int32_t gathered_only;          /* no memory for xstage_ulysses_attend */
    int32_t buffers;                /* 0: 2 */
    xstage_attention_kernel kernel; /* NULL: cuDNN; the reference on the host backend */
    void* user;
    int32_t kernel_returns_packed; /* `out` is packed scratch, sent on by a kernel of ours */
    int64_t tile_rows;             /* 0: 128 */
    int32_t builtin;               /* xstage_builtin, when kernel is NULL */
    int32_t masked; /* calls compute the blocks of xstage_ulysses_set_mask (xstage_sparse.h) */
} xstage_ulysses_options;

typedef struct xstage_ulysses xstage_ulysses;

/* Collective. */
int xstage_ulysses_create(xstage_fabric* fabric, const xstage_ulysses_options* options,
                          xstage_ulysses** attention);
void xstage_ulysses_destroy(xstage_ulysses* attention);
/* One line about the plan. Valid as long as the object. */
const char* xstage_ulysses_describe(const xstage_ulysses* attention);
size_t xstage_ulysses_memory_bytes(const xstage_ulysses* attention);
/* Which query and key heads a rank computes: [begin, end). */
int xstage_ulysses_heads(const xstage_ulysses* attention, int rank, int32_t q[2], int32_t kv[2]);

/* Memory of the caller that takes a copy of the result; zeroed: the result is lent. */
typedef struct xstage_destination {
    xstage_view out;
    xstage_view text_out;
    const void* head_scale; /* per (sample, row, head), in the dtype */
    int64_t head_scale_batch;
    int64_t head_scale_row;
} xstage_destination;

typedef struct xstage_gathered_input {
    xstage_view q, k, v;
    const int32_t* kv_lengths;
    float scale; /* 0: 1 / sqrt(head_dim) */
    xstage_destination to;
} xstage_gathered_input;

typedef struct xstage_norm {
    int32_t kind;     /* 0 none, 1 per head, 2 full width */
    int32_t rounding; /* 0 once, 1 twice */
    int32_t weight_fp32;
    const void* weight;
    float eps;
} xstage_norm;

typedef struct xstage_rotary {
    int32_t kind;  /* 0 none, 1 interleaved pairs, 2 halves */
    int32_t table; /* 0 per dimension, 1 per pair, 2 cos from even and sin from odd entries */
    int32_t math;  /* 0 each fp32 operation rounded, 1 fused multiply-add, 2 rounded to the dtype */
    int32_t table_fp32;
    int32_t dims; /* 0: all */
    int32_t step; /* between entries; 0: 1 */
    const void* cos;
    const void* sin;
    int64_t batch_stride, row_stride, head_stride; /* table elements */
} xstage_rotary;

typedef struct xstage_projection {
    xstage_view image, text;
    xstage_norm norm, text_norm;
    xstage_rotary rotary, text_rotary;
} xstage_projection;

typedef struct xstage_sharded_input {
    xstage_projection q, k, v;
    const int32_t* kv_lengths;
    float scale;
    xstage_destination to;
} xstage_sharded_input;

typedef struct xstage_ulysses_result {
    xstage_view out, text_out;
    xstage_lse_view lse, text_lse;
} xstage_ulysses_result;

/* Collective on streams; `count` inputs and results, one per rank of this process. */
int xstage_ulysses_attend_and_scatter(xstage_ulysses* attention,
                                      const xstage_gathered_input* inputs, size_t count,
                                      void* const* streams, size_t stream_count,
                                      xstage_ulysses_result* results);
int xstage_ulysses_attend(xstage_ulysses* attention, const xstage_sharded_input* inputs,
                          size_t count, void* const* streams, size_t stream_count,
                          xstage_ulysses_result* results);
int xstage_ulysses_use_buffer(xstage_ulysses* attention, int buffer);
int xstage_ulysses_out_memory(const xstage_ulysses* attention, int buffer, int rank,
                              xstage_view* out);

#ifdef __cplusplus
}
#endif

#endif
