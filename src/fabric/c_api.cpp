#include <algorithm>

#include "fabric/c_error.hpp"
#include "xstage/fabric.hpp"
#include "xstage/xstage.h"

using namespace xstage;
using namespace xstage::fabric;

struct xstage_fabric {
    Fabric fabric;
};
struct xstage_symmetric_buffer {
    SymmetricBuffer buffer;
};
struct xstage_stitched_tensor {
    StitchedTensor tensor;
};

namespace xstage::fabric {

std::string& last_error() {
    static thread_local std::string error;
    return error;
}

}  // namespace xstage::fabric

namespace {

template <class T>
T& existing(T* pointer, const char* what) {
    if (pointer == nullptr)
        throw Error(ErrorKind::kBadInput, std::string(what) + " must not be NULL");
    return *pointer;
}

Streams streams_of(void* const* streams, std::size_t count) {
    if (count == 0) return {};
    existing(streams, "streams");
    return std::span<void* const>(streams, count);
}

template <class Enum>
Enum checked_enum(std::int32_t value, Enum last, const char* what) {
    if (value < 0 || value > static_cast<std::int32_t>(last))
        throw Error(ErrorKind::kBadInput,
                    std::string("there is no ") + what + " " + std::to_string(value));
    return static_cast<Enum>(value);
}

FabricOptions options_of(const xstage_fabric_options* given) {
    const xstage_fabric_options o = sized(given);
    FabricOptions options;
    options.backend = checked_enum(o.backend, Backend::kNvshmem, "backend");
    options.world = o.world;
    options.rank = o.rank;
    if (o.name != nullptr) options.name = o.name;
    if (o.devices != nullptr) options.devices.assign(o.devices, o.devices + o.device_count);
    if (o.setup_timeout_ms != 0)
        options.setup_timeout = std::chrono::milliseconds(o.setup_timeout_ms);
    if (o.wait_timeout_ms != 0) options.wait_timeout = std::chrono::milliseconds(o.wait_timeout_ms);
    options.trap_on_timeout = o.trap_on_timeout != 0;
    options.allow_fallback = o.allow_fallback != 0;
    if (o.host_page_bytes != 0) options.host_page_bytes = o.host_page_bytes;
    return options;
}

StitchedOptions options_of(const xstage_stitched_options* given, int world) {
    const xstage_stitched_options o = sized(given);
    StitchedOptions options;
    options.kind = o.padded != 0 ? LayoutKind::kPadded : LayoutKind::kBatched;
    options.order = o.by_pages != 0 ? ChunkOrder::kPages : ChunkOrder::kWhole;
    existing(o.rows, "rows");
    options.rows.assign(o.rows, o.rows + world);
    options.row_bytes = o.row_bytes;
    options.dtype = checked_enum(o.dtype, DType::kF64, "dtype");
    if (o.tile_rows != 0) options.tile_rows = o.tile_rows;
    if (o.rank_order != nullptr) options.rank_order.assign(o.rank_order, o.rank_order + world);
    if (o.buffers != 0) options.buffers = o.buffers;
    return options;
}

}  // namespace

const char* xstage_last_error(void) {
    return last_error().c_str();
}

int xstage_fabric_create(const xstage_fabric_options* options, xstage_fabric** fabric) {
    return guarded(
        [&] { existing(fabric, "fabric") = new xstage_fabric{Fabric(options_of(options))}; });
}
void xstage_fabric_destroy(xstage_fabric* fabric) {
    delete fabric;
}
int xstage_fabric_world(const xstage_fabric* f) {
    return f == nullptr ? 0 : f->fabric.world();
}
int xstage_fabric_backend(const xstage_fabric* f) {
    return f == nullptr ? -1 : static_cast<int>(f->fabric.backend());
}
const char* xstage_fabric_fallback_reason(const xstage_fabric* f) {
    return f == nullptr ? "" : f->fabric.fallback_reason().c_str();
}
size_t xstage_fabric_page_bytes(const xstage_fabric* f) {
    return f == nullptr ? 0 : f->fabric.page_bytes();
}
int xstage_fabric_barrier(xstage_fabric* f, void* const* streams, size_t count) {
    return guarded([&] { existing(f, "fabric").fabric.barrier(streams_of(streams, count)); });
}
int xstage_fabric_synchronize(xstage_fabric* f, void* const* streams, size_t count) {
    return guarded([&] { existing(f, "fabric").fabric.synchronize(streams_of(streams, count)); });
}
int xstage_fabric_check(const xstage_fabric* f) {
    return guarded([&] { existing(f, "fabric").fabric.check(); });
}

int xstage_symmetric_buffer_create(xstage_fabric* f, size_t bytes, int32_t dtype,
                                   size_t reserve_bytes, xstage_symmetric_buffer** buffer) {
    return guarded([&] {
        existing(buffer, "buffer") = new xstage_symmetric_buffer{
            SymmetricBuffer(existing(f, "fabric").fabric, bytes,
                            checked_enum(dtype, DType::kF64, "dtype"), reserve_bytes)};
    });
}
void xstage_symmetric_buffer_destroy(xstage_symmetric_buffer* buffer) {
    delete buffer;
}
int xstage_symmetric_buffer_grow(xstage_symmetric_buffer* b, size_t bytes) {
    return guarded([&] { existing(b, "buffer").buffer.grow(bytes); });
}
int xstage_symmetric_buffer_at(const xstage_symmetric_buffer* b, int rank, void** address) {
    return guarded([&] { existing(address, "address") = existing(b, "buffer").buffer.at(rank); });
}

int xstage_stitched_tensor_create(xstage_fabric* f, const xstage_stitched_options* options,
                                  xstage_stitched_tensor** tensor) {
    return guarded([&] {
        Fabric& group = existing(f, "fabric").fabric;
        existing(tensor, "tensor") =
            new xstage_stitched_tensor{StitchedTensor(group, options_of(options, group.world()))};
    });
}
void xstage_stitched_tensor_destroy(xstage_stitched_tensor* tensor) {
    delete tensor;
}
int xstage_stitched_tensor_layout(const xstage_stitched_tensor* t, xstage_stitched_layout* layout) {
    return guarded([&] {
        const StitchedLayout& l = existing(t, "tensor").tensor.layout();
        existing(layout, "layout") = {l.row_stride,    l.batch_stride,  l.range_bytes,
                                      l.axis_rows,     l.last_apart,    l.tiles,
                                      l.tiles_added(), l.memory_ratio()};
    });
}
int xstage_stitched_tensor_range(const xstage_stitched_tensor* t, int buffer, void** address) {
    return guarded(
        [&] { existing(address, "address") = existing(t, "tensor").tensor.range(buffer); });
}
int xstage_stitched_tensor_receive(const xstage_stitched_tensor* t, int buffer, int rank,
                                   void** address) {
    return guarded(
        [&] { existing(address, "address") = existing(t, "tensor").tensor.receive(buffer, rank); });
}
int xstage_stitched_tensor_offset(const xstage_stitched_tensor* t, int rank, int64_t row,
                                  size_t* offset) {
    return guarded([&] {
        existing(offset, "offset") = existing(t, "tensor").tensor.layout().offset_of(rank, row);
    });
}
int xstage_stitched_tensor_begin(xstage_stitched_tensor* t, int buffer, void* const* streams,
                                 size_t count) {
    return guarded([&] { existing(t, "tensor").tensor.begin(buffer, streams_of(streams, count)); });
}
int xstage_stitched_tensor_publish(xstage_stitched_tensor* t, int buffer, void* const* streams,
                                   size_t count) {
    return guarded(
        [&] { existing(t, "tensor").tensor.publish(buffer, streams_of(streams, count)); });
}
int xstage_stitched_tensor_acquire(xstage_stitched_tensor* t, int buffer, void* const* streams,
                                   size_t count) {
    return guarded(
        [&] { existing(t, "tensor").tensor.acquire(buffer, streams_of(streams, count)); });
}
int xstage_stitched_tensor_exchange(xstage_stitched_tensor* t, int buffer, void* const* streams,
                                    size_t count) {
    return guarded(
        [&] { existing(t, "tensor").tensor.exchange(buffer, streams_of(streams, count)); });
}
