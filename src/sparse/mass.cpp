#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "xstage/error.hpp"
#include "xstage/sparse/west.hpp"

namespace xstage::sparse {

namespace {

/// Adds to `mass` the attention of one query row by key block. Two passes over the keys: the sum of
/// exponentials first, so that no row of scores is kept.
void add_row(const float* q, HeadView k, std::int64_t rows, int head_dim, double scale,
             double weight, double* mass) {
    const auto score = [&](std::int64_t j) {
        const float* key = k.data + j * k.stride;
        double dot = 0;
        for (int c = 0; c < head_dim; ++c) dot += double{q[c]} * key[c];
        return dot * scale;
    };
    double most = -INFINITY;
    double sum = 0;
    for (std::int64_t j = 0; j < rows; ++j) {
        const double s = score(j);
        if (!std::isfinite(s)) {
            throw Error(ErrorKind::kBadInput,
                        fmt::format("attention mass: the score of key {} is {}", j, s));
        }
        if (s > most) {
            sum *= std::exp(most - s);
            most = s;
        }
        sum += std::exp(s - most);
    }
    for (std::int64_t j = 0; j < rows; ++j) {
        mass[j / kBlock] += weight * std::exp(score(j) - most) / sum;
    }
}

double scale_of(double scale, int head_dim) {
    if (scale < 0 || !std::isfinite(scale) || head_dim < 1) {
        throw Error(ErrorKind::kBadInput, "attention mass: scale or head_dim");
    }
    return scale > 0 ? scale : 1 / std::sqrt(double(head_dim));
}

}  // namespace

std::vector<double> block_mass(HeadView q, HeadView k, std::int64_t rows, int head_dim,
                               double scale) {
    scale = scale_of(scale, head_dim);
    const std::int64_t blocks = blocks_of(rows);
    std::vector<double> mass(static_cast<std::size_t>(blocks * blocks));
    for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t u = i / kBlock;
        const auto in_block =
            static_cast<double>(std::min<std::int64_t>(kBlock, rows - u * kBlock));
        add_row(q.data + i * q.stride, k, rows, head_dim, scale, 1 / in_block,
                mass.data() + u * blocks);
    }
    return mass;
}

std::vector<double> row_mass(HeadView q, HeadView k, std::int64_t rows, int head_dim,
                             std::span<const std::int64_t> query_rows, double scale) {
    scale = scale_of(scale, head_dim);
    const std::int64_t blocks = blocks_of(rows);
    std::vector<double> mass(query_rows.size() * static_cast<std::size_t>(blocks));
    double* at = mass.data();
    for (const std::int64_t i : query_rows) {
        if (i < 0 || i >= rows) {
            throw Error(ErrorKind::kBadInput, fmt::format("attention mass: there is no row {}", i));
        }
        add_row(q.data + i * q.stride, k, rows, head_dim, scale, 1, at);
        at += blocks;
    }
    return mass;
}

}  // namespace xstage::sparse
