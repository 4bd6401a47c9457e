/* The C ABI of the MegaMoE layer; see docs/moe.md. Errors as in xstage.h. */
#ifndef XSTAGE_XSTAGE_MOE_H
#define XSTAGE_XSTAGE_MOE_H

#include "xstage/xstage.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum xstage_moe_type {
    XSTAGE_MOE_BF16 = 0,
    XSTAGE_MOE_FP8 = 1 /* e4m3; activations scaled by 1x128, weights by 128x128 */
} xstage_moe_type;

typedef struct xstage_moe_options {
    size_t struct_size;
    int32_t max_tokens;   /* per rank and call */
    int32_t hidden;       /* a multiple of 256 */
    int32_t intermediate; /* a multiple of 128 */
    int32_t experts;      /* of all ranks */
    int32_t top_k;
    int32_t type; /* xstage_moe_type */
    float clamp;  /* of SwiGLU's inputs; 0: none */
    /* "wave:N", "wave:all", "alternate", "lead:N", "ratio", the turns perhaps with "+SLACK"; NULL:
     * the order that measured best. */
    const char* order;
    int32_t ring_blocks;      /* 0: as many as any routing can fill */
    uint64_t workspace_limit; /* bytes; 0: none */
    int32_t bulk_stores;      /* Linear-2 rows by bulk copies */
    int32_t blocks;           /* CTAs per rank; 0: all */
    int32_t agree_on_calls;   /* ranks meet on the host before every call */
    int32_t shared_expert; /* every rank holds one more expert, which all its tokens go through */
} xstage_moe_options;

/* A rank's experts, a shared one first: w1 [local experts][2 * intermediate][hidden] with gate rows
 * first, w2 [local experts][hidden][intermediate]; fp8: a scale for every 128x128 block. */
typedef struct xstage_moe_weights {
    const void* w1;
    const void* w2;
    const float* s1;
    const float* s2;
} xstage_moe_weights;

typedef struct xstage_moe_input {
    int32_t tokens;
    const void* x;            /* [tokens][hidden] */
    const float* x_scale;     /* fp8: [tokens][hidden / 128] */
    const int32_t* experts;   /* [tokens][top_k]; negative: none */
    const float* weights;     /* [tokens][top_k] */
    const int32_t* tokens_at; /* device memory, read by the kernel; NULL: tokens */
    void* y;                  /* bf16 [tokens][hidden] */
} xstage_moe_input;

typedef struct xstage_moe xstage_moe;

/* Bytes of workspace that each of `ranks` ranks needs. Touches no GPU. */
int xstage_moe_workspace_bytes(const xstage_moe_options* options, int ranks, uint64_t* bytes);

/* Collective. One set of weights per rank of this process. */
int xstage_moe_create(xstage_fabric* fabric, const xstage_moe_options* options,
                      const xstage_moe_weights* weights, size_t count, xstage_moe** moe);
void xstage_moe_destroy(xstage_moe* moe);
int xstage_moe_set_order(xstage_moe* moe, const char* order);

/* Where a rank's input stands: a call with these addresses copies nothing. `y` stays as it is. */
int xstage_moe_input_memory(const xstage_moe* moe, int rank, xstage_moe_input* input);

/* Collective on streams; one input per rank of this process. */
int xstage_moe_run(xstage_moe* moe, const xstage_moe_input* inputs, size_t count,
                   void* const* streams, size_t stream_count);

#ifdef __cplusplus
}
#endif

#endif
