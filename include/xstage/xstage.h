/* The C ABI of xstage. Handles are opaque; every function that can fail returns 0 or the number of
 * what went wrong, and xstage_last_error() then says it in words, for the calling thread. */
#ifndef XSTAGE_XSTAGE_H
#define XSTAGE_XSTAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As the exit codes of the command line. */
typedef enum xstage_status {
    XSTAGE_OK = 0,
    XSTAGE_CHECK_FAILED = 1,
    XSTAGE_BAD_INPUT = 2,
    XSTAGE_UNSUPPORTED = 3,
    XSTAGE_ENVIRONMENT = 4,
    XSTAGE_TIMED_OUT = 124
} xstage_status;

/* One line about the last failure on this thread; "" before the first. Valid until the next call.
 */
const char* xstage_last_error(void);

/* "0.1.0"; valid for the life of the process. */
const char* xstage_version(void);

/* ---- fabric: see docs/fabric.md ---------------------------------------------------------------
 */

typedef enum xstage_backend {
    XSTAGE_BACKEND_HOST = 0,
    XSTAGE_BACKEND_LOCAL = 1,
    XSTAGE_BACKEND_PROCESS = 2,
    XSTAGE_BACKEND_NVSHMEM = 3
} xstage_backend;

typedef enum xstage_dtype {
    XSTAGE_U8 = 0,
    XSTAGE_F16 = 1,
    XSTAGE_BF16 = 2,
    XSTAGE_F32 = 3,
    XSTAGE_F64 = 4
} xstage_dtype;

typedef struct xstage_fabric xstage_fabric;
typedef struct xstage_symmetric_buffer xstage_symmetric_buffer;
typedef struct xstage_stitched_tensor xstage_stitched_tensor;

typedef struct xstage_fabric_options {
    size_t struct_size; /* sizeof(xstage_fabric_options): later versions append fields */
    int32_t backend;
    int32_t world;
    int32_t rank;
    const char* name;       /* names the group; not needed for `local` or a single rank */
    const int32_t* devices; /* NULL: rank modulo the number of devices */
    size_t device_count;
    uint32_t setup_timeout_ms; /* 0: 30000 */
    uint32_t wait_timeout_ms;  /* 0: 30000 */
    int32_t trap_on_timeout;
    int32_t allow_fallback;
    size_t host_page_bytes; /* 0: 2 MiB */
} xstage_fabric_options;

/* Collective, as are the other creations and xstage_symmetric_buffer_grow. */
int xstage_fabric_create(const xstage_fabric_options* options, xstage_fabric** fabric);
void xstage_fabric_destroy(xstage_fabric* fabric);
int xstage_fabric_world(const xstage_fabric* fabric);
int xstage_fabric_backend(const xstage_fabric* fabric);
/* "" when the group is on the backend that was asked for. Valid as long as the fabric. */
const char* xstage_fabric_fallback_reason(const xstage_fabric* fabric);
size_t xstage_fabric_page_bytes(const xstage_fabric* fabric);
/* `streams`: one cudaStream_t per device of this process, or NULL with a count of 0 for defaults.
 */
int xstage_fabric_barrier(xstage_fabric* fabric, void* const* streams, size_t stream_count);
int xstage_fabric_synchronize(xstage_fabric* fabric, void* const* streams, size_t stream_count);
/* The group's failure, if it is broken; XSTAGE_OK otherwise. */
int xstage_fabric_check(const xstage_fabric* fabric);

int xstage_symmetric_buffer_create(xstage_fabric* fabric, size_t bytes, int32_t dtype,
                                   size_t reserve_bytes, xstage_symmetric_buffer** buffer);
void xstage_symmetric_buffer_destroy(xstage_symmetric_buffer* buffer);
int xstage_symmetric_buffer_grow(xstage_symmetric_buffer* buffer, size_t bytes);
int xstage_symmetric_buffer_at(const xstage_symmetric_buffer* buffer, int rank, void** address);

typedef struct xstage_stitched_options {
    size_t struct_size;  /* sizeof(xstage_stitched_options) */
    int32_t padded;      /* 0: batched */
    int32_t by_pages;    /* single pages of the ranks in turn; padded only */
    const int64_t* rows; /* per rank */
    size_t row_bytes;
    int32_t dtype;
    int64_t tile_rows;         /* 0: 128 */
    const int32_t* rank_order; /* NULL: 0, 1, 2, ... */
    int32_t buffers;           /* 0: 2 */
} xstage_stitched_options;

typedef struct xstage_stitched_layout {
    size_t row_stride;
    size_t batch_stride; /* 0 when padded */
    size_t range_bytes;
    int64_t axis_rows;
    int32_t last_apart;
    int64_t tiles;
    int64_t tiles_added;
    double memory_ratio;
} xstage_stitched_layout;

int xstage_stitched_tensor_create(xstage_fabric* fabric, const xstage_stitched_options* options,
                                  xstage_stitched_tensor** tensor);
void xstage_stitched_tensor_destroy(xstage_stitched_tensor* tensor);
int xstage_stitched_tensor_layout(const xstage_stitched_tensor* tensor,
                                  xstage_stitched_layout* layout);
int xstage_stitched_tensor_range(const xstage_stitched_tensor* tensor, int buffer, void** address);
int xstage_stitched_tensor_receive(const xstage_stitched_tensor* tensor, int buffer, int rank,
                                   void** address);
/* Byte offset in the range of a rank's row. */
int xstage_stitched_tensor_offset(const xstage_stitched_tensor* tensor, int rank, int64_t row,
                                  size_t* offset);
int xstage_stitched_tensor_begin(xstage_stitched_tensor* tensor, int buffer, void* const* streams,
                                 size_t stream_count);
int xstage_stitched_tensor_publish(xstage_stitched_tensor* tensor, int buffer, void* const* streams,
                                   size_t stream_count);
int xstage_stitched_tensor_acquire(xstage_stitched_tensor* tensor, int buffer, void* const* streams,
                                   size_t stream_count);

/* publish and acquire as one kernel. */
int xstage_stitched_tensor_exchange(xstage_stitched_tensor* tensor, int buffer,
                                    void* const* streams, size_t stream_count);

/* ---- tensors for frameworks --------------------------------------------------------------------
 */

/* A DLManagedTensor (DLPack's ABI of version 0) over `data`, which stays the caller's; its deleter
 * frees the structure alone. `device_type` is DLPack's: 1 for the CPU, 2 for CUDA. Strides in
 * elements. */
int xstage_dlpack_make(void* data, int32_t dtype, int32_t device_type, int32_t device_id,
                       int32_t dimensions, const int64_t* shape, const int64_t* strides,
                       void** managed);

#ifdef __cplusplus
}
#endif

#endif
