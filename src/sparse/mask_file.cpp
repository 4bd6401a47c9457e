#include <fmt/format.h>

#include <charconv>

#include "sparse/safetensors.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/file.hpp"

namespace xstage::sparse {

namespace {

constexpr const char* kFormat = "xstage-sparse";
constexpr const char* kVersion = "1";

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {}", path, what));
}

std::int64_t metadata_number(const TensorFile& file, const std::string& key,
                             const std::string& path) {
    const auto at = file.metadata.find(key);
    if (at == file.metadata.end()) fail(path, fmt::format("__metadata__ has no '{}'", key));
    std::int64_t value = 0;
    const char* end = at->second.data() + at->second.size();
    if (std::from_chars(at->second.data(), end, value).ptr != end || at->second.empty()) {
        fail(path, fmt::format("__metadata__.{} is '{}', not a number", key, at->second));
    }
    return value;
}

double metadata_real(const TensorFile& file, const std::string& key, const std::string& path) {
    const auto at = file.metadata.find(key);
    if (at == file.metadata.end()) fail(path, fmt::format("__metadata__ has no '{}'", key));
    double value = 0;
    const char* end = at->second.data() + at->second.size();
    if (std::from_chars(at->second.data(), end, value).ptr != end || at->second.empty()) {
        fail(path, fmt::format("__metadata__.{} is '{}', not a number", key, at->second));
    }
    return value;
}

void check_format(const TensorFile& file, const std::string& kind, const std::string& path) {
    const auto get = [&](const char* key) {
        const auto at = file.metadata.find(key);
        return at == file.metadata.end() ? std::string() : at->second;
    };
    if (get("format") != kFormat || get("kind") != kind || get("version") != kVersion) {
        fail(path,
             fmt::format("expected format {}, kind {}, version {}; found '{}', '{}', '{}'", kFormat,
                         kind, kVersion, get("format"), get("kind"), get("version")));
    }
}

const Tensor& tensor(const TensorFile& file, const std::string& name, const std::string& dtype,
                     std::size_t dimensions, const std::string& path) {
    const auto at = file.tensors.find(name);
    if (at == file.tensors.end()) fail(path, fmt::format("there is no tensor '{}'", name));
    if (at->second.dtype != dtype || at->second.shape.size() != dimensions) {
        fail(path, fmt::format("tensor '{}': expected {} with {} dimensions, found {} with {}",
                               name, dtype, dimensions, at->second.dtype, at->second.shape.size()));
    }
    return at->second;
}

}  // namespace

MaskFile read_mask_file(const std::string& path) {
    const TensorFile file = read_tensors(path);
    check_format(file, "thresholds", path);
    MaskFile result;
    const TokenLayout layout{
        metadata_number(file, "text", path), metadata_number(file, "frames", path),
        metadata_number(file, "height", path), metadata_number(file, "width", path)};
    result.prompts = metadata_number(file, "prompts", path);
    result.steps = metadata_number(file, "steps", path);
    const std::int64_t layers = metadata_number(file, "layers", path);
    if (layers < 1 || layers > 65536 || result.steps < 1 || result.steps > 65536) {
        fail(path, fmt::format("{} layers and {} steps", layers, result.steps));
    }
    try {
        for (std::int64_t l = 0; l < layers; ++l) {
            const Tensor& t = tensor(file, fmt::format("layers.{}.remainders", l), "F16", 3, path);
            result.layers.emplace_back(t.shape[0], layout, values_of<std::uint16_t>(t));
        }
        const std::int64_t heads = result.layers[0].heads();
        if (file.tensors.contains("sampled_rows")) {
            const auto rows = values_of<std::int64_t>(tensor(file, "sampled_rows", "I64", 1, path));
            for (std::int64_t i = 0; i < layers * result.steps; ++i) {
                const Tensor& t = tensor(
                    file,
                    fmt::format("layers.{}.steps.{}.row_mass", i / result.steps, i % result.steps),
                    "F32", 3, path);
                result.samples.push_back({rows, values_of<float>(t)});
            }
        }
        if (file.tensors.contains("budgets")) {
            const Tensor& t = tensor(file, "budgets", "F32", 3, path);
            if (t.shape != std::vector<std::int64_t>{layers, result.steps, heads}) {
                fail(path, "budgets are not for these layers, steps and heads");
            }
            Budgets b{layers, result.steps, heads, {}, 0, values_of<float>(t)};
            b.schedule = {metadata_real(file, "beta", path), metadata_real(file, "gamma", path),
                          metadata_real(file, "omega", path),
                          metadata_real(file, "strength", path)};
            b.density = metadata_real(file, "density", path);
            result.budgets = std::move(b);
        }
    } catch (const Error& error) {
        const std::string what = error.what();
        if (what.starts_with(path)) throw;
        fail(path, what);
    }
    return result;
}

void write_mask_file(const std::string& path, const MaskFile& m) {
    TensorFile file;
    const TokenLayout& layout = m.layers.at(0).layout();
    file.metadata = {{"format", kFormat},
                     {"kind", "thresholds"},
                     {"version", kVersion},
                     {"text", std::to_string(layout.text)},
                     {"frames", std::to_string(layout.frames)},
                     {"height", std::to_string(layout.height)},
                     {"width", std::to_string(layout.width)},
                     {"prompts", std::to_string(m.prompts)},
                     {"steps", std::to_string(m.steps)},
                     {"layers", std::to_string(m.layers.size())}};
    for (std::size_t l = 0; l < m.layers.size(); ++l) {
        const ThresholdMap& map = m.layers[l];
        file.tensors[fmt::format("layers.{}.remainders", l)] = {
            "F16", {map.heads(), map.blocks(), map.blocks()}, bytes_of(map.remainders())};
    }
    if (!m.samples.empty()) {
        const std::vector<std::int64_t>& rows = m.samples[0].rows;
        const auto count = static_cast<std::int64_t>(rows.size());
        file.tensors["sampled_rows"] = {"I64", {count}, bytes_of(rows)};
        for (std::size_t i = 0; i < m.samples.size(); ++i) {
            const auto steps = static_cast<std::size_t>(m.steps);
            const ThresholdMap& map = m.layers.at(i / steps);
            file.tensors[fmt::format("layers.{}.steps.{}.row_mass", i / steps, i % steps)] = {
                "F32", {map.heads(), count, map.blocks()}, bytes_of(m.samples[i].mass)};
        }
    }
    if (m.budgets) {
        const Budgets& b = *m.budgets;
        file.tensors["budgets"] = {"F32", {b.layers, b.steps, b.heads}, bytes_of(b.top_p)};
        file.metadata["beta"] = fmt::format("{}", b.schedule.beta);
        file.metadata["gamma"] = fmt::format("{}", b.schedule.gamma);
        file.metadata["omega"] = fmt::format("{}", b.schedule.omega);
        file.metadata["strength"] = fmt::format("{}", b.schedule.strength);
        file.metadata["density"] = fmt::format("{}", b.density);
    }
    write_tensors(path, file);
}

void write_block_mask(const std::string& path, const BlockMask& mask) {
    TensorFile file;
    file.metadata = {{"format", kFormat},
                     {"kind", "mask"},
                     {"version", kVersion},
                     {"q_rows", std::to_string(mask.q_rows())},
                     {"kv_rows", std::to_string(mask.kv_rows())}};
    file.tensors["mask"] = {"U32",
                            {mask.batches(), mask.heads(), mask.q_blocks(), mask.words()},
                            bytes_of(mask.bits())};
    write_tensors(path, file);
}

BlockMask read_block_mask(const std::string& path) {
    const TensorFile file = read_tensors(path);
    check_format(file, "mask", path);
    const Tensor& t = tensor(file, "mask", "U32", 4, path);
    try {
        return mask_from_bits(t.shape[0], t.shape[1], metadata_number(file, "q_rows", path),
                              metadata_number(file, "kv_rows", path), values_of<std::uint32_t>(t));
    } catch (const Error& error) {
        fail(path, error.what());
    }
}

}  // namespace xstage::sparse
