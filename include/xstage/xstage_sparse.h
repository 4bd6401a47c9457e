/* The C ABI of block-sparse attention; see docs/sparse.md. Errors as in xstage.h. */
#ifndef XSTAGE_XSTAGE_SPARSE_H
#define XSTAGE_XSTAGE_SPARSE_H

#include "xstage/xstage_ulysses.h"

#ifdef __cplusplus
extern "C" {
#endif

/* O = softmax(scale * Q K^T) V over the kept blocks of 128 query rows x 128 keys. Views are
 * [batch, rows, heads, head_dim], bf16 or fp16; addresses and strides multiples of 16 bytes. */
typedef struct xstage_block_sparse_options {
    size_t struct_size; /* sizeof(xstage_block_sparse_options): later versions append fields */
    int32_t dtype;      /* XSTAGE_F16 or XSTAGE_BF16 */
    int32_t head_dim;   /* 64 or 128 */
    int32_t batch;
    int32_t heads_q;
    int32_t heads_kv;
    int64_t rows_q;
    int64_t rows_kv;
    xstage_view q, k, v, out;
    float* lse;  /* [batch, heads, rows], natural logarithm; NULL if nobody wants it */
    float scale; /* 0: 1/sqrt(head_dim) */
    /* In host memory, copied: [mask_batch][mask_heads][ceil(rows_q / 128)][words], one bit a key
     * block, block v in bit v % 32 of word v / 32, words = ceil(ceil(rows_kv / 128) / 32). */
    const uint32_t* mask;
    int32_t mask_batch; /* 1 or batch */
    int32_t mask_heads; /* 1, heads_kv or heads_q */
} xstage_block_sparse_options;

typedef struct xstage_block_sparse xstage_block_sparse;

/* Checks, schedules the tiles and copies the mask to the current device. Tensors must outlive it.
 */
int xstage_block_sparse_create(const xstage_block_sparse_options* options,
                               xstage_block_sparse** plan);
void xstage_block_sparse_destroy(xstage_block_sparse* plan);

/* Enqueues the attention on `stream` (a cudaStream_t); may be captured into a graph. A row without
 * a kept block gives 0, and -inf in lse. */
int xstage_block_sparse_attention(const xstage_block_sparse* plan, void* stream);

#ifdef __cplusplus
}
#endif

#endif
