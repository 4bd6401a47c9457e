// Memory of ours as a DLPack tensor. The exchange structure is DLPack's ABI of version 0, which
// every framework reads; it is written out here because it is small and must not change.
#include <new>

#include "fabric/c_error.hpp"
#include "xstage/xstage.h"

namespace {

struct DLDevice {
    std::int32_t type;
    std::int32_t id;
};
struct DLDataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};
struct DLTensor {
    void* data;
    DLDevice device;
    std::int32_t ndim;
    DLDataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};
struct DLManagedTensor {
    DLTensor tensor;
    void* context;
    void (*deleter)(DLManagedTensor*);
};

constexpr int kMostDimensions = 8;
struct Owned {
    DLManagedTensor managed;
    std::int64_t shape[kMostDimensions];
    std::int64_t strides[kMostDimensions];
};

DLDataType type_of(std::int32_t dtype) {
    constexpr std::uint8_t kUnsigned = 1, kFloat = 2, kBfloat = 4;
    switch (dtype) {
        case XSTAGE_U8:
            return {kUnsigned, 8, 1};
        case XSTAGE_F16:
            return {kFloat, 16, 1};
        case XSTAGE_BF16:
            return {kBfloat, 16, 1};
        case XSTAGE_F32:
            return {kFloat, 32, 1};
        case XSTAGE_F64:
            return {kFloat, 64, 1};
        default:
            throw xstage::Error(xstage::ErrorKind::kBadInput,
                                "there is no dtype " + std::to_string(dtype));
    }
}

}  // namespace

int xstage_dlpack_make(void* data, int32_t dtype, int32_t device_type, int32_t device_id,
                       int32_t dimensions, const int64_t* shape, const int64_t* strides,
                       void** managed) {
    return xstage::fabric::guarded([&] {
        if (dimensions < 0 || dimensions > kMostDimensions || managed == nullptr ||
            (dimensions > 0 && (shape == nullptr || strides == nullptr)))
            throw xstage::Error(xstage::ErrorKind::kBadInput,
                                "a tensor of 0 to 8 dimensions with shape and strides is needed");
        const DLDataType type = type_of(dtype);
        auto* owned = new Owned{};
        for (int i = 0; i < dimensions; ++i) {
            owned->shape[i] = shape[i];
            owned->strides[i] = strides[i];
        }
        owned->managed.tensor = {data,         {device_type, device_id}, dimensions, type,
                                 owned->shape, owned->strides,           0};
        owned->managed.context = owned;
        owned->managed.deleter = [](DLManagedTensor* m) { delete static_cast<Owned*>(m->context); };
        *managed = &owned->managed;
    });
}
