#include <fmt/format.h>

#include <algorithm>

#include "sparse/safetensors.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/file.hpp"

namespace xstage::sparse {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {}", path, what));
}

std::string name_of(std::int64_t layer, std::int64_t step, const char* which) {
    return fmt::format("layers.{}.steps.{}.{}", layer, step, which);
}

/// Layers and steps of a dump, counted from 0 on.
std::pair<std::int64_t, std::int64_t> extent(const TensorFile& file, const std::string& path) {
    std::int64_t layers = 0;
    while (file.tensors.contains(name_of(layers, 0, "q"))) ++layers;
    std::int64_t steps = 0;
    while (file.tensors.contains(name_of(0, steps, "q"))) ++steps;
    if (layers == 0) fail(path, fmt::format("there is no tensor '{}'", name_of(0, 0, "q")));
    if (file.tensors.size() != static_cast<std::size_t>(2 * layers * steps)) {
        fail(path, fmt::format("{} tensors, where {} layers x {} steps need {}",
                               file.tensors.size(), layers, steps, 2 * layers * steps));
    }
    return {layers, steps};
}

/// Queries or keys of one layer and step, [row][head][column].
struct Dump {
    std::vector<float> values;
    std::int64_t heads = 0, head_dim = 0;

    HeadView head(std::int64_t h) const { return {values.data() + h * head_dim, heads * head_dim}; }
};

Dump dump_of(const TensorFile& file, const std::string& name, std::int64_t rows,
             const std::string& path) {
    const auto at = file.tensors.find(name);
    if (at == file.tensors.end()) fail(path, fmt::format("there is no tensor '{}'", name));
    const Tensor& t = at->second;
    if (t.shape.size() != 3 || t.shape[0] != rows || t.shape[1] < 1 || t.shape[2] < 1) {
        fail(path, fmt::format("tensor '{}': expected [{}, heads, head_dim], found [{}]", name,
                               rows, fmt::join(t.shape, ", ")));
    }
    return {t.floats(), t.shape[1], t.shape[2]};
}

}  // namespace

MaskFile calibrate(const std::vector<std::string>& paths, const TokenLayout& layout, double scale) {
    if (paths.empty()) throw Error(ErrorKind::kBadInput, "calibration: no prompt");
    const std::int64_t rows = layout.rows();
    MaskFile result;
    std::vector<WestCalibration> layers;
    std::vector<std::int64_t> heads_of;
    for (const std::string& path : paths) {
        const TensorFile file = read_tensors(path);
        const auto [layer_count, steps] = extent(file, path);
        const bool first = &path == &paths.front();
        if (first) result.steps = steps;
        if (!first &&
            (steps != result.steps || layer_count != static_cast<std::int64_t>(layers.size()))) {
            fail(path, fmt::format("{} layers and {} steps, {} has {} and {}", layer_count, steps,
                                   paths.front(), layers.size(), result.steps));
        }
        try {
            for (std::int64_t l = 0; l < layer_count; ++l) {
                for (std::int64_t t = 0; t < steps; ++t) {
                    const Dump q = dump_of(file, name_of(l, t, "q"), rows, path);
                    const Dump k = dump_of(file, name_of(l, t, "k"), rows, path);
                    if (q.head_dim != k.head_dim || q.heads % k.heads != 0) {
                        fail(path, fmt::format("layer {} step {}: q has {} heads of {}, k {} of {}",
                                               l, t, q.heads, q.head_dim, k.heads, k.head_dim));
                    }
                    if (first && t == 0) {
                        layers.emplace_back(q.heads, layout);
                        heads_of.push_back(q.heads);
                    }
                    if (q.heads != heads_of[static_cast<std::size_t>(l)] ||
                        q.heads != heads_of[0]) {
                        fail(path, fmt::format("layer {} step {}: {} heads, {} expected", l, t,
                                               q.heads, heads_of[0]));
                    }
                    RowSamples samples{stratified_rows(rows), {}};
                    const int dim = static_cast<int>(q.head_dim);
                    for (std::int64_t h = 0; h < q.heads; ++h) {
                        const HeadView keys = k.head(h / (q.heads / k.heads));
                        layers[static_cast<std::size_t>(l)].add(
                            h, block_mass(q.head(h), keys, rows, dim, scale));
                        if (!first) continue;
                        for (const double m :
                             row_mass(q.head(h), keys, rows, dim, samples.rows, scale)) {
                            samples.mass.push_back(static_cast<float>(m));
                        }
                    }
                    if (first) result.samples.push_back(std::move(samples));
                }
            }
        } catch (const Error& error) {
            const std::string what = error.what();
            if (what.starts_with(path)) throw;
            fail(path, what);
        }
        ++result.prompts;
    }
    for (const WestCalibration& c : layers) result.layers.push_back(c.map());
    return result;
}

}  // namespace xstage::sparse
