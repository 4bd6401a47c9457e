#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace xstage::sparse {

/// One tensor of a safetensors file; `bytes` lie in row-major order, little-endian.
struct Tensor {
    std::string dtype;  ///< F32, F16, BF16, I64, U32
    std::vector<std::int64_t> shape;
    std::string bytes;

    std::int64_t elements() const;
    /// Values of an F32, F16 or BF16 tensor. Throws Error (kBadInput) for others.
    std::vector<float> floats() const;
};

/// A file of the safetensors format: a header length (8 bytes), a JSON header with one entry a
/// tensor and __metadata__ (strings), and the tensors' bytes back to back.
struct TensorFile {
    std::map<std::string, std::string> metadata;
    std::map<std::string, Tensor> tensors;
};

/// Throws Error (kBadInput) with the path and what is wrong: a header or an offset that leaves the
/// file, tensors that overlap or leave gaps, sizes that contradict shapes.
TensorFile read_tensors(const std::string& path);
TensorFile parse_tensors(std::string_view content, const std::string& path);
/// In one step, as core::write_file_atomic.
void write_tensors(const std::string& path, const TensorFile& file);
std::string dump_tensors(const TensorFile& file);

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::vector<T> values_of(const Tensor& tensor) {
    std::vector<T> values(tensor.bytes.size() / sizeof(T));
    tensor.bytes.copy(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
    return values;
}

}  // namespace xstage::sparse
