#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "fabric/c_error.hpp"
#include "ops/sparse/engine.hpp"
#include "ops/sparse/handles.hpp"
#include "ops/ulysses/storage.hpp"
#include "xstage/sparse/file.hpp"
#include "xstage/xstage_sparse.h"

using namespace xstage;
using fabric::guarded;

struct xstage_sparse_maps {
    sparse::TokenLayout layout;
    std::int64_t layers = 0, heads = 0;
    /// Empty for maps from a file, which are complete.
    std::vector<sparse::WestCalibration> calibration;
    std::vector<bool> added;        ///< [layer * steps + step] of the current prompt
    bool changed = false;           ///< calibration holds more than file.layers
    mutable sparse::MaskFile file;  ///< layers are made from the calibration when asked for

    const sparse::MaskFile& complete() const {
        if (changed || (file.layers.empty() && !calibration.empty())) {
            file.layers.clear();
            for (const sparse::WestCalibration& c : calibration) file.layers.push_back(c.map());
            const_cast<xstage_sparse_maps*>(this)->changed = false;
        }
        return file;
    }
};

namespace {

[[noreturn]] void bad(const std::string& what) {
    throw Error(ErrorKind::kBadInput, what);
}

template <class Maps>
Maps& existing(Maps* maps) {
    if (maps == nullptr) bad("maps must not be NULL");
    return *maps;
}

sparse::TokenLayout layout_of(const xstage_token_layout& l) {
    return {l.text, l.frames, l.height, l.width};
}

std::size_t place(const xstage_sparse_maps& maps, std::int64_t layer, std::int64_t step) {
    if (layer < 0 || layer >= maps.layers || step < 0 || step >= maps.file.steps)
        bad(fmt::format("there is no layer {} and step {}: the maps are of {} layers and {} steps",
                        layer, step, maps.layers, maps.file.steps));
    return static_cast<std::size_t>(layer * maps.file.steps + step);
}

/// One head of a view in host memory, as floats.
template <class T>
std::vector<float> floats_of(const xstage_view& view, std::int64_t rows, int head, int head_dim) {
    std::vector<float> values(static_cast<std::size_t>(rows * head_dim));
    for (std::int64_t i = 0; i < rows; ++i) {
        const T* from =
            static_cast<const T*>(view.data) + i * view.row_stride + head * view.head_stride;
        for (int c = 0; c < head_dim; ++c)
            values[static_cast<std::size_t>(i * head_dim + c)] = from[c].value();
    }
    return values;
}

void mass_on_host(const xstage_sparse_mass_options& o, double* mass, float* row_mass) {
    const auto rows_wanted =
        std::vector<std::int64_t>(o.sampled_rows, o.sampled_rows + o.sampled_count);
    ulysses::with_storage(static_cast<fabric::DType>(o.dtype), [&](auto type) {
        using T = decltype(type);
        for (int h = 0; h < o.heads_q; ++h) {
            const std::vector<float> q = floats_of<T>(o.q, o.rows, h, o.head_dim);
            const std::vector<float> k =
                floats_of<T>(o.k, o.rows, h / (o.heads_q / o.heads_kv), o.head_dim);
            const sparse::HeadView qv{q.data(), o.head_dim}, kv{k.data(), o.head_dim};
            if (mass != nullptr) {
                const auto found = sparse::block_mass(qv, kv, o.rows, o.head_dim, double{o.scale});
                mass = std::copy(found.begin(), found.end(), mass);
            }
            if (row_mass == nullptr) continue;
            for (const double m :
                 sparse::row_mass(qv, kv, o.rows, o.head_dim, rows_wanted, double{o.scale}))
                *row_mass++ = static_cast<float>(m);
        }
    });
}

void check_mass(const xstage_sparse_mass_options& o) {
    if (o.dtype != XSTAGE_F16 && o.dtype != XSTAGE_BF16 && o.dtype != XSTAGE_F32)
        bad("dtype must be F16 or BF16, or F32 on the host");
    if (o.q.data == nullptr || o.k.data == nullptr) bad("q and k must not be NULL");
    if (o.rows < 1 || o.rows >= std::int64_t{1} << 31 || o.head_dim < 1 || o.heads_q < 1 ||
        o.heads_kv < 1 || o.heads_q % o.heads_kv != 0)
        bad(fmt::format("{} rows, {} query heads over {} key heads, head_dim {}", o.rows, o.heads_q,
                        o.heads_kv, o.head_dim));
    if (o.sampled_count > 0 && o.sampled_rows == nullptr) bad("sampled_rows must not be NULL");
    for (std::size_t i = 0; i < o.sampled_count; ++i)
        if (o.sampled_rows[i] < 0 || o.sampled_rows[i] >= o.rows)
            bad(fmt::format("there is no row {}", o.sampled_rows[i]));
}

}  // namespace

int xstage_sparse_mass(const xstage_sparse_mass_options* given, void* stream, double* mass,
                       float* row_mass) {
    return guarded([&] {
        const xstage_sparse_mass_options o = fabric::sized(given);
        check_mass(o);
        if (o.on_host != 0) {
            mass_on_host(o, mass, row_mass);
            return;
        }
        const auto view = [](const xstage_view& v) {
            return ulysses::View{v.data, v.batch_stride, v.row_stride, v.head_stride};
        };
        ops::MassCall call{view(o.q),  view(o.k), static_cast<fabric::DType>(o.dtype),
                           o.head_dim, o.heads_q, o.heads_kv,
                           o.rows,     o.scale,   o.lse,
                           {},         stream};
        if (row_mass != nullptr)
            call.sampled_rows.assign(o.sampled_rows, o.sampled_rows + o.sampled_count);
        const ops::Mass found = ops::mass_on_gpu(call);
        if (mass != nullptr) std::copy(found.blocks.begin(), found.blocks.end(), mass);
        if (row_mass != nullptr) std::copy(found.rows.begin(), found.rows.end(), row_mass);
    });
}

int xstage_sparse_maps_create(const xstage_token_layout* layout, int64_t layers, int64_t steps,
                              int64_t heads, xstage_sparse_maps** maps) {
    return guarded([&] {
        if (layout == nullptr || maps == nullptr) bad("layout and maps must not be NULL");
        if (layers < 1 || layers > 65536 || steps < 1 || steps > 65536)
            bad(fmt::format("{} layers and {} steps", layers, steps));
        auto made = std::make_unique<xstage_sparse_maps>();
        made->layout = layout_of(*layout);
        made->layers = layers;
        made->heads = heads;
        made->file.steps = steps;
        made->calibration.assign(static_cast<std::size_t>(layers), {heads, made->layout});
        made->added.assign(static_cast<std::size_t>(layers * steps), false);
        const std::vector<std::int64_t> rows = sparse::stratified_rows(made->layout.rows());
        made->file.samples.assign(made->added.size(), {rows, {}});
        *maps = made.release();
    });
}

int xstage_sparse_maps_read(const char* path, xstage_sparse_maps** maps) {
    return guarded([&] {
        if (path == nullptr || maps == nullptr) bad("path and maps must not be NULL");
        auto made = std::make_unique<xstage_sparse_maps>();
        made->file = sparse::read_mask_file(path);
        made->layout = made->file.layers[0].layout();
        made->layers = static_cast<std::int64_t>(made->file.layers.size());
        made->heads = made->file.layers[0].heads();
        *maps = made.release();
    });
}

int xstage_sparse_maps_write(const xstage_sparse_maps* maps, const char* path) {
    return guarded([&] {
        if (path == nullptr) bad("path must not be NULL");
        const sparse::MaskFile& file = existing(maps).complete();
        if (file.prompts == 0) bad("no prompt has been taken in yet: there is nothing to write");
        sparse::write_mask_file(path, file);
    });
}

void xstage_sparse_maps_destroy(xstage_sparse_maps* maps) {
    delete maps;
}

int xstage_sparse_maps_add(xstage_sparse_maps* maps, int64_t layer, int64_t step,
                           const double* mass, const float* row_mass) {
    return guarded([&] {
        xstage_sparse_maps& m = existing(maps);
        const std::size_t i = place(m, layer, step);
        if (m.calibration.empty()) bad("these maps come from a file: make new ones to calibrate");
        if (mass == nullptr) bad("mass must not be NULL");
        const auto blocks = static_cast<std::size_t>(sparse::blocks_of(m.layout.rows()));
        sparse::WestCalibration& west = m.calibration[static_cast<std::size_t>(layer)];
        for (std::int64_t h = 0; h < m.heads; ++h)
            west.add(h, {mass + static_cast<std::size_t>(h) * blocks * blocks, blocks * blocks});
        sparse::RowSamples& samples = m.file.samples[i];
        if (row_mass != nullptr)
            samples.mass.assign(row_mass, row_mass + static_cast<std::size_t>(m.heads) *
                                                         samples.rows.size() * blocks);
        m.added[i] = m.changed = true;
        m.file.budgets.reset();
    });
}

int xstage_sparse_maps_end_prompt(xstage_sparse_maps* maps) {
    return guarded([&] {
        xstage_sparse_maps& m = existing(maps);
        if (m.calibration.empty()) bad("these maps come from a file");
        for (std::size_t i = 0; i < m.added.size(); ++i) {
            const auto steps = static_cast<std::size_t>(m.file.steps);
            if (!m.added[i])
                bad(
                    fmt::format("the prompt is not complete: nothing was added for layer {} step "
                                "{}",
                                i / steps, i % steps));
            if (m.file.samples[i].mass.empty())
                bad(
                    fmt::format("no rows were given for layer {} step {}, by which fidelity is "
                                "judged",
                                i / steps, i % steps));
        }
        m.added.assign(m.added.size(), false);
        ++m.file.prompts;
    });
}

int xstage_sparse_maps_sizes(const xstage_sparse_maps* maps, xstage_sparse_sizes* sizes) {
    return guarded([&] {
        const xstage_sparse_maps& m = existing(maps);
        if (sizes == nullptr) bad("sizes must not be NULL");
        const sparse::TokenLayout& l = m.layout;
        *sizes = {
            m.layers,
            m.file.steps,
            m.heads,
            m.file.prompts,
            sparse::blocks_of(l.rows()),
            {l.text, l.frames, l.height, l.width},
            m.file.samples.empty() ? 0 : static_cast<std::int64_t>(m.file.samples[0].rows.size()),
            m.file.budgets ? m.file.budgets->density : -1,
            m.file.budgets ? m.file.budgets->schedule.strength : 0};
    });
}

int xstage_sparse_maps_rows(const xstage_sparse_maps* maps, int64_t* rows) {
    return guarded([&] {
        const xstage_sparse_maps& m = existing(maps);
        if (rows == nullptr) bad("rows must not be NULL");
        if (!m.file.samples.empty())
            std::copy(m.file.samples[0].rows.begin(), m.file.samples[0].rows.end(), rows);
    });
}

int xstage_sparse_maps_remainders(const xstage_sparse_maps* maps, int64_t layer, uint16_t* halves) {
    return guarded([&] {
        const xstage_sparse_maps& m = existing(maps);
        place(m, layer, 0);
        if (halves == nullptr) bad("halves must not be NULL");
        const auto& from = m.complete().layers[static_cast<std::size_t>(layer)].remainders();
        std::copy(from.begin(), from.end(), halves);
    });
}

int xstage_sparse_maps_tune(xstage_sparse_maps* maps, double density, double beta, double gamma,
                            double omega) {
    return guarded([&] {
        xstage_sparse_maps& m = existing(maps);
        const sparse::MaskFile& file = m.complete();
        if (file.samples.empty()) bad("there are no sampled rows to tune with");
        if (file.prompts == 0) bad("no prompt has been taken in yet");
        m.file.budgets =
            sparse::tune(file.layers, file.samples, file.steps, density, {beta, gamma, omega, 0});
    });
}

int xstage_sparse_maps_budgets(const xstage_sparse_maps* maps, int64_t layer, int64_t step,
                               float* top_p) {
    return guarded([&] {
        const xstage_sparse_maps& m = existing(maps);
        place(m, layer, step);
        if (!m.file.budgets) bad("the maps have not been tuned");
        if (top_p == nullptr) bad("top_p must not be NULL");
        const auto from = m.file.budgets->at(layer, step);
        std::copy(from.begin(), from.end(), top_p);
    });
}

int xstage_sparse_maps_fidelity(const xstage_sparse_maps* maps, int64_t layer, int64_t step,
                                int64_t head, float top_p, double* mean, double* worst) {
    return guarded([&] {
        const xstage_sparse_maps& m = existing(maps);
        const std::size_t i = place(m, layer, step);
        if (head < 0 || head >= m.heads) bad(fmt::format("there is no head {}", head));
        if (mean == nullptr || worst == nullptr) bad("mean and worst must not be NULL");
        if (m.file.samples.empty() || m.file.samples[i].mass.empty())
            bad("there are no sampled rows to judge by");
        const sparse::Fidelity found = sparse::fidelity(
            m.complete().layers[static_cast<std::size_t>(layer)], head, m.file.samples[i], top_p);
        *mean = found.mean;
        *worst = found.worst;
    });
}

int xstage_sparse_maps_mask(const xstage_sparse_maps* maps, int64_t layer, const float* top_p,
                            double density, const xstage_token_layout* layout,
                            xstage_block_mask** mask) {
    return guarded([&] {
        const xstage_sparse_maps& m = existing(maps);
        place(m, layer, 0);
        if (mask == nullptr) bad("the place for the mask must not be NULL");
        if (m.file.prompts == 0) bad("no prompt has been taken in yet");
        const sparse::ThresholdMap* map = &m.complete().layers[static_cast<std::size_t>(layer)];
        sparse::ThresholdMap other;
        if (layout != nullptr && !(layout_of(*layout) == m.layout)) {
            other = map->resampled(layout_of(*layout));
            map = &other;
        }
        const auto heads = static_cast<std::size_t>(m.heads);
        *mask = new xstage_block_mask{std::make_shared<const sparse::BlockMask>(
            top_p != nullptr ? map->mask(std::span(top_p, heads)) : map->mask_of_density(density))};
    });
}
