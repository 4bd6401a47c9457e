#pragma once

// Attention with a topology that is known: weights that fall off with the distance between tokens
// in frames, rows and columns, in units of the picture's size, so that another resolution shows the
// same.

#include <cmath>
#include <cstdint>
#include <vector>

#include "xstage/sparse/west.hpp"

namespace xstage::sparse::test {

struct Topology {
    double frames, height, width;  ///< reach in shares of each axis
    double background = 0;         ///< weight of every other pair
};

/// A head that looks at its surroundings, and one that looks along time.
inline const Topology kSpatial{0.15, 0.10, 0.10, 0};
inline const Topology kTemporal{2.0, 0.05, 0.05, 0};

/// Mass by block, [query block][key block], of softmax weights w(i, j) * (1 + noise(i, j)) with
/// w separable over the axes. `planted` counts the pairs within reach only.
struct Masses {
    std::vector<double> all, planted;
};

inline Masses synthetic_mass(const TokenLayout& layout, const Topology& topology, unsigned prompt,
                             double noise) {
    const std::int64_t rows = layout.rows();
    const std::int64_t blocks = blocks_of(rows);
    const auto axis = [](std::int64_t n, double reach) {
        std::vector<double> weights(static_cast<std::size_t>(n));
        for (std::int64_t d = 0; d < n; ++d) {
            const double x = static_cast<double>(d) / static_cast<double>(n) / reach;
            weights[static_cast<std::size_t>(d)] = x < 1 ? 1 - 0.9 * x : 0;
        }
        return weights;
    };
    const auto wf = axis(layout.frames, topology.frames);
    const auto wy = axis(layout.height, topology.height);
    const auto wx = axis(layout.width, topology.width);
    Masses m;
    m.all.resize(static_cast<std::size_t>(blocks * blocks));
    m.planted = m.all;
    std::vector<double> row(static_cast<std::size_t>(blocks));
    std::vector<double> near(row.size());
    for (std::int64_t i = 0; i < rows; ++i) {
        std::fill(row.begin(), row.end(), 0.0);
        std::fill(near.begin(), near.end(), 0.0);
        const std::int64_t f = i / (layout.height * layout.width);
        const std::int64_t y = i / layout.width % layout.height;
        const std::int64_t x = i % layout.width;
        double sum = 0;
        std::int64_t j = 0;
        for (std::int64_t g = 0; g < layout.frames; ++g) {
            const double a = wf[static_cast<std::size_t>(std::abs(g - f))];
            for (std::int64_t b = 0; b < layout.height; ++b) {
                const double ab = a * wy[static_cast<std::size_t>(std::abs(b - y))];
                for (std::int64_t c = 0; c < layout.width; ++c, ++j) {
                    const double w = ab * wx[static_cast<std::size_t>(std::abs(c - x))];
                    if (w == 0 && topology.background == 0) continue;
                    std::uint32_t mix =
                        static_cast<std::uint32_t>(i * 40503 + j) * 2654435761U + prompt * 97;
                    mix = (mix ^ mix >> 15) * 0x2c1b3c6dU;
                    const double random = static_cast<double>(mix >> 8) / (1 << 24);
                    const double weight = (w + topology.background) * (1 + noise * random);
                    row[static_cast<std::size_t>(j / kBlock)] += weight;
                    if (w > 0) near[static_cast<std::size_t>(j / kBlock)] += weight;
                    sum += weight;
                }
            }
        }
        const std::int64_t u = i / kBlock;
        const double in_block =
            static_cast<double>(std::min<std::int64_t>(kBlock, rows - u * kBlock));
        for (std::int64_t v = 0; v < blocks; ++v) {
            const auto at = static_cast<std::size_t>(u * blocks + v);
            m.all[at] += row[static_cast<std::size_t>(v)] / sum / in_block;
            m.planted[at] += near[static_cast<std::size_t>(v)] / sum / in_block;
        }
    }
    return m;
}

}  // namespace xstage::sparse::test
