/* The C ABI of block-sparse attention; see docs/sparse.md. Errors as in xstage.h. */
#ifndef XSTAGE_XSTAGE_SPARSE_H
#define XSTAGE_XSTAGE_SPARSE_H

#include "xstage/xstage_ulysses.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which blocks of 128 query rows x 128 keys are computed, one bit each. Does not change. */
typedef struct xstage_block_mask xstage_block_mask;

/* `bits`, copied: [batches][heads][ceil(rows_q / 128)][words], key block v in bit v % 32 of word
 * v / 32, words = ceil(ceil(rows_kv / 128) / 32); NULL: all blocks. */
int xstage_block_mask_create(int32_t batches, int32_t heads, int64_t rows_q, int64_t rows_kv,
                             const uint32_t* bits, xstage_block_mask** mask);
void xstage_block_mask_destroy(xstage_block_mask* mask);
/* Another mask, which also keeps all that query rows [first, last) attend to, and all that attends
 * to keys [first, last): text or audio tokens among video ones. */
int xstage_block_mask_with_dense(const xstage_block_mask* mask, int64_t first, int64_t last,
                                 xstage_block_mask** result);
/* As many words as create takes. */
int xstage_block_mask_bits(const xstage_block_mask* mask, uint32_t* bits);
/* Kept share of the query-key pairs of one head; batch and head -1: of all. */
int xstage_block_mask_density(const xstage_block_mask* mask, int32_t batch, int32_t head,
                              double* density);

/* Heads order[0 .. count) of a mask, in this order, as another mask. */
int xstage_block_mask_heads(const xstage_block_mask* mask, const int32_t* order, int32_t count,
                            xstage_block_mask** result);
/* An order of the mask's heads in which `ranks` equal runs of them have about equally much to do.
 * load[0], load[1]: the largest run's share of pairs over the mean, as they stand and in this
 * order. The ranks must divide the heads. */
int xstage_block_mask_balance(const xstage_block_mask* mask, int32_t ranks, int32_t* order,
                              double load[2]);

typedef struct xstage_block_sparse_tensors {
    xstage_view q, k, v, out; /* [batch, rows, heads, head_dim] */
    float* lse;               /* [batch, heads, rows], natural logarithm; NULL if nobody wants it */
} xstage_block_sparse_tensors;

/* O = softmax(scale * Q K^T) V over the kept blocks. On a GPU (Hopper): bf16 or fp16, head_dim 64
 * or 128, addresses and strides multiples of 16 bytes. On the host: fp32 too, any head_dim, slow.
 */
typedef struct xstage_block_sparse_options {
    size_t struct_size; /* sizeof(xstage_block_sparse_options): later versions append fields */
    int32_t dtype;
    int32_t head_dim;
    int32_t batch;
    int32_t heads_q;
    int32_t heads_kv;
    int64_t rows_q;
    int64_t rows_kv;
    xstage_block_sparse_tensors tensors;
    float scale; /* 0: 1/sqrt(head_dim) */
    /* Of 1 or `batch` batches, and 1, heads_kv or heads_q heads. Copied. */
    const xstage_block_mask* mask;
    int32_t on_host; /* the tensors are in host memory */
} xstage_block_sparse_options;

typedef struct xstage_block_sparse xstage_block_sparse;

/* Checks, schedules the tiles and copies the mask to the current device. */
int xstage_block_sparse_create(const xstage_block_sparse_options* options,
                               xstage_block_sparse** plan);
void xstage_block_sparse_destroy(xstage_block_sparse* plan);

/* Enqueues the attention on `stream` (a cudaStream_t; not on the host, which computes at once); may
 * be captured into a graph. `tensors`: others of the same shapes; NULL: those of the options, or of
 * the last call. A row without a kept block gives 0, and -inf in lse. Threads take turns. */
int xstage_block_sparse_attention(xstage_block_sparse* plan,
                                  const xstage_block_sparse_tensors* tensors, void* stream);

/* For an attention that was created with xstage_ulysses_options.masked: the blocks of all ranks'
 * rows and all heads that its next calls compute, the same on every rank. Captured calls keep
 * theirs, for as long as it is among the last 256 masks. */
int xstage_ulysses_set_mask(xstage_ulysses* attention, const xstage_block_mask* mask);

/* Tokens of a sequence: `text` leading ones, then frames x height x width in raster order. */
typedef struct xstage_token_layout {
    int64_t text, frames, height, width;
} xstage_token_layout;

/* One sample's queries and keys, [rows, heads, head_dim] (batch strides are not read). */
typedef struct xstage_sparse_mass_options {
    size_t struct_size;
    int32_t dtype;    /* XSTAGE_F16 or XSTAGE_BF16; on the host F32 too */
    int32_t head_dim; /* on a GPU a multiple of 8 up to 128 */
    int32_t heads_q;
    int32_t heads_kv;
    int64_t rows;
    xstage_view q, k;
    float scale; /* 0: 1/sqrt(head_dim) */
    /* [heads_q, rows], of the dense attention, where q is; NULL: found in a pass of its own. */
    const float* lse;
    const int64_t* sampled_rows; /* in host memory */
    size_t sampled_count;
    int32_t on_host;
} xstage_sparse_mass_options;

/* Attention mass by block, without the rows x rows matrix: for each head, query block u and key
 * block v the share of u's attention that falls on v, in mass[head][u][v]; and for each sampled row
 * the same in row_mass[head][i][v]. Both in host memory, both may be NULL. Waits for `stream`. */
int xstage_sparse_mass(const xstage_sparse_mass_options* options, void* stream, double* mass,
                       float* row_mass);

/* Threshold maps of a model's layers, and how much of them its heads need at each step. */
typedef struct xstage_sparse_maps xstage_sparse_maps;

int xstage_sparse_maps_create(const xstage_token_layout* layout, int64_t layers, int64_t steps,
                              int64_t heads, xstage_sparse_maps** maps);
int xstage_sparse_maps_read(const char* path, xstage_sparse_maps** maps);
int xstage_sparse_maps_write(const xstage_sparse_maps* maps, const char* path);
void xstage_sparse_maps_destroy(xstage_sparse_maps* maps);

/* Takes in what xstage_sparse_mass found of one layer and step; row_mass for the rows of
 * xstage_sparse_maps_rows, NULL but for the prompt that fidelity is judged by. */
int xstage_sparse_maps_add(xstage_sparse_maps* maps, int64_t layer, int64_t step,
                           const double* mass, const float* row_mass);
/* A prompt is complete: every layer and step has been added for it. */
int xstage_sparse_maps_end_prompt(xstage_sparse_maps* maps);

typedef struct xstage_sparse_sizes {
    int64_t layers, steps, heads, prompts, blocks;
    xstage_token_layout layout;
    int64_t sampled_rows; /* of each layer and step; 0: none are known */
    double density;       /* of the budgets; negative before xstage_sparse_maps_tune */
    double strength;
} xstage_sparse_sizes;
int xstage_sparse_maps_sizes(const xstage_sparse_maps* maps, xstage_sparse_sizes* sizes);
/* The query rows that fidelity is judged by, sizes.sampled_rows of them. */
int xstage_sparse_maps_rows(const xstage_sparse_maps* maps, int64_t* rows);
/* 1 - threshold as float16 bits, [heads][blocks][blocks]. */
int xstage_sparse_maps_remainders(const xstage_sparse_maps* maps, int64_t layer, uint16_t* halves);

/* Budgets for every layer, step and head, of this mean density (docs/sparse.md). */
int xstage_sparse_maps_tune(xstage_sparse_maps* maps, double density, double beta, double gamma,
                            double omega);
/* Top-p of each head. */
int xstage_sparse_maps_budgets(const xstage_sparse_maps* maps, int64_t layer, int64_t step,
                               float* top_p);
/* Of a head's sampled rows with the blocks that top_p keeps: mean and worst. */
int xstage_sparse_maps_fidelity(const xstage_sparse_maps* maps, int64_t layer, int64_t step,
                                int64_t head, float top_p, double* mean, double* worst);
/* The mask of one layer: by `top_p` of each head, or, if that is NULL, of this density. `layout`:
 * of another resolution or number of frames; NULL: the maps' own. */
int xstage_sparse_maps_mask(const xstage_sparse_maps* maps, int64_t layer, const float* top_p,
                            double density, const xstage_token_layout* layout,
                            xstage_block_mask** mask);

#ifdef __cplusplus
}
#endif

#endif
