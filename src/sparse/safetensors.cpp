#include "sparse/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/file.hpp"
#include "core/json.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/west.hpp"

namespace xstage::sparse {

namespace {

constexpr std::size_t kMostHeaderBytes = std::size_t{100} << 20;
constexpr std::size_t kMostFileBytes = std::size_t{64} << 30;

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie");

std::size_t bytes_per_element(const std::string& dtype) {
    if (dtype == "F32" || dtype == "U32") return 4;
    if (dtype == "F16" || dtype == "BF16") return 2;
    if (dtype == "I64") return 8;
    return 0;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {}", path, what));
}

/// The entry's number of bytes, or a failure.
std::size_t checked_bytes(const Tensor& tensor, const std::string& name, const std::string& path) {
    const std::size_t each = bytes_per_element(tensor.dtype);
    if (each == 0) {
        fail(path, fmt::format("tensor '{}' has the type {}; F32, F16, BF16, I64 and U32 are read",
                               name, tensor.dtype));
    }
    std::size_t count = each;
    for (const std::int64_t n : tensor.shape) {
        if (n < 0 || (n > 0 && count > kMostFileBytes / static_cast<std::size_t>(n))) {
            fail(path, fmt::format("tensor '{}' has an extent of {}", name, n));
        }
        count *= static_cast<std::size_t>(n);
    }
    return count;
}

}  // namespace

std::int64_t Tensor::elements() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
}

std::vector<float> Tensor::floats() const {
    if (dtype == "F32") return values_of<float>(*this);
    if (dtype != "F16" && dtype != "BF16") {
        throw Error(ErrorKind::kBadInput,
                    "a tensor of type " + dtype + " where F32, F16 or BF16 is read");
    }
    std::vector<float> values;
    for (const std::uint16_t bits : values_of<std::uint16_t>(*this)) {
        values.push_back(dtype == "F16"
                             ? half_to_float(bits)
                             : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
    }
    return values;
}

TensorFile parse_tensors(std::string_view content, const std::string& path) {
    if (content.size() < 8) fail(path, "no safetensors file: shorter than its header's length");
    std::uint64_t length = 0;
    content.copy(reinterpret_cast<char*>(&length), 8);
    if (length > content.size() - 8 || length > kMostHeaderBytes) {
        fail(path, fmt::format("no safetensors file: a header of {} bytes in a file of {}", length,
                               content.size()));
    }
    const core::Json header = core::parse_json(content.substr(8, length), path);
    if (!header.is_object()) fail(path, "the header is not an object");
    const std::string_view data = content.substr(8 + length);

    TensorFile file;
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") {
            if (!entry.is_object()) fail(path, "__metadata__ is not an object");
            for (const auto& [key, value] : entry.items()) {
                if (!value.is_string())
                    fail(path, fmt::format("__metadata__.{} is no string", key));
                file.metadata[key] = value.get<std::string>();
            }
            continue;
        }
        const auto unsigned_list = [](const core::Json& j) {
            return j.is_array() && std::all_of(j.begin(), j.end(), [](const core::Json& x) {
                       return x.is_number_unsigned() &&
                              x.get<std::uint64_t>() <
                                  std::uint64_t{std::numeric_limits<std::int64_t>::max()};
                   });
        };
        if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
            !entry.contains("shape") || !unsigned_list(entry["shape"]) ||
            !entry.contains("data_offsets") || !unsigned_list(entry["data_offsets"]) ||
            entry["data_offsets"].size() != 2) {
            fail(path,
                 fmt::format("tensor '{}': expected dtype, shape and two data_offsets", name));
        }
        Tensor tensor;
        tensor.dtype = entry["dtype"].get<std::string>();
        tensor.shape = entry["shape"].get<std::vector<std::int64_t>>();
        const auto begin = entry["data_offsets"][0].get<std::size_t>();
        const auto end = entry["data_offsets"][1].get<std::size_t>();
        if (begin > end || end > data.size()) {
            fail(path, fmt::format("tensor '{}' lies at {} to {} of {} bytes", name, begin, end,
                                   data.size()));
        }
        if (checked_bytes(tensor, name, path) != end - begin) {
            fail(path, fmt::format("tensor '{}' has {} bytes, its shape needs {}", name,
                                   end - begin, checked_bytes(tensor, name, path)));
        }
        ranges.emplace_back(begin, end);
        tensor.bytes = data.substr(begin, end - begin);
        file.tensors.emplace(name, std::move(tensor));
    }
    std::sort(ranges.begin(), ranges.end());
    std::size_t at = 0;
    for (const auto& [begin, end] : ranges) {
        if (begin != at)
            fail(path, fmt::format("tensors overlap or leave a gap at byte {}", begin));
        at = end;
    }
    if (at != data.size())
        fail(path, fmt::format("{} bytes behind the last tensor", data.size() - at));
    return file;
}

TensorFile read_tensors(const std::string& path) {
    return parse_tensors(core::read_file(path, kMostFileBytes), path);
}

std::string dump_tensors(const TensorFile& file) {
    core::Json header = core::Json::object();
    if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
    std::size_t at = 0;
    for (const auto& [name, tensor] : file.tensors) {
        header[name] = {{"dtype", tensor.dtype},
                        {"shape", tensor.shape},
                        {"data_offsets", {at, at + tensor.bytes.size()}}};
        at += tensor.bytes.size();
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // tensors begin at a multiple of 8 bytes
    const std::uint64_t length = text.size();
    std::string content(reinterpret_cast<const char*>(&length), 8);
    content += text;
    content.reserve(content.size() + at);
    for (const auto& [name, tensor] : file.tensors) content += tensor.bytes;
    return content;
}

void write_tensors(const std::string& path, const TensorFile& file) {
    core::write_file_atomic(path, dump_tensors(file));
}

}  // namespace xstage::sparse
