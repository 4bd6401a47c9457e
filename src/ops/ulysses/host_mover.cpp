#include <cstring>

#include "ops/ulysses/mover.hpp"
#include "ops/ulysses/storage.hpp"

namespace xstage::ulysses {
namespace {

template <class T>
void scale_row(const RowScatter& s, std::byte* to, const std::byte* from, const std::byte* factor) {
    T f;
    std::memcpy(&f, factor, sizeof f);
    for (std::size_t e = 0; e < static_cast<std::size_t>(s.bytes) / sizeof(T); ++e) {
        T x;
        std::memcpy(&x, from + e * sizeof(T), sizeof x);
        const T y = T::from(exact::mul(x.value(), f.value()));
        std::memcpy(to + e * sizeof(T), &y, sizeof y);
    }
}

float sum_of_lanes(float* lane, int lanes) {
    float total = 0;
    for (int warp = 0; warp < lanes / 32; ++warp) {
        float* w = lane + 32 * warp;
        for (int distance = 16; distance > 0; distance /= 2) {
            float next[32];
            for (int l = 0; l < 32; ++l) next[l] = exact::add(w[l], w[l ^ distance]);
            std::memcpy(w, next, sizeof next);
        }
        total = warp == 0 ? w[0] : exact::add(total, w[0]);
    }
    return total;
}

/// 1 / root mean square of `count` elements, element i at x(i), in the order of transform.hpp.
template <class Element>
float reciprocal_rms(std::int64_t count, int lanes, float eps, const Element& x) {
    float lane[kRowLanes] = {};
    for (std::int64_t g = 0; g * kSumGroup < count; ++g) {
        float sum = 0;
        for (std::int64_t i = g * kSumGroup; i < count && i < (g + 1) * kSumGroup; ++i)
            sum = exact::add(sum, exact::mul(x(i), x(i)));
        lane[g % lanes] = exact::add(lane[g % lanes], sum);
    }
    return exact::rsqrt(exact::add(sum_of_lanes(lane, lanes) / static_cast<float>(count), eps));
}

template <class T>
void send_head(const HeadScatter& s, const T* x, T* y, int b, std::int64_t row, int head,
               float rstd) {
    const std::int64_t weights =
        s.norm.kind == NormKind::kFullWidth ? std::int64_t{head} * s.head_dim : 0;
    const Rotary& r = s.rotary;
    const std::int64_t table = b * r.batch_stride + row * r.row_stride + head * r.head_stride;
    for (int e = 0; e < s.head_dim; ++e) y[e] = sent_element(s.norm, r, x, rstd, weights, table, e);
}

template <class T>
void send_heads(const HeadScatter& s) {
    const std::int64_t rows = s.rows * s.batch;
    for (std::int64_t i = 0; i < rows * s.world; ++i) {
        const SendStep step = send_step(s.order, s.rank, s.world, rows, i);
        const int b = static_cast<int>(step.row / s.rows);
        const std::int64_t row = step.row % s.rows;
        const int to = step.destination;
        if (s.head_count[to] == 0) continue;
        const T* x = static_cast<const T*>(s.from) + b * s.from_batch + row * s.from_row;
        T* y = static_cast<T*>(s.to[to]) + b * s.to_batch[to] +
               axis_row(s.map, s.map_rank, row) * s.to_row[to];
        float rstd = 1;
        if (s.norm.kind == NormKind::kFullWidth)
            rstd = reciprocal_rms(
                std::int64_t{s.heads} * s.head_dim, kRowLanes, s.norm.eps, [&](std::int64_t e) {
                    return x[e / s.head_dim * s.from_head + e % s.head_dim].value();
                });
        for (int h = 0; h < s.head_count[to]; ++h) {
            const int head = s.first_head[to] + h;
            const T* from = x + head * s.from_head;
            if (s.norm.kind == NormKind::kPerHead)
                rstd = reciprocal_rms(s.head_dim, kHeadLanes, s.norm.eps,
                                      [&](std::int64_t e) { return from[e].value(); });
            send_head<T>(s, from, y + std::int64_t{h} * s.head_dim, b, row, head, rstd);
        }
    }
}

class HostMover final : public Mover {
  public:
    void move(const RowScatter& s, int, void*) override {
        for (int turn = 0; turn < s.world; ++turn) {
            const int p = (s.first + turn) % s.world;
            if (s.to[p] == nullptr) continue;
            for (int b = 0; b < s.batch; ++b)
                for (std::int64_t row = 0; row < s.rows[p]; ++row)
                    for (int h = 0; h < s.heads; ++h) one(s, p, b, row, h);
        }
    }

    void move(const HeadExchange& all, int, void*) override {
        for (int i = 0; i < all.count; ++i)
            with_storage(all.part[i].dtype,
                         [&](auto type) { send_heads<decltype(type)>(all.part[i]); });
    }

    void* stream(const fabric::Streams&, int) const override { return nullptr; }

  private:
    static void one(const RowScatter& s, int p, int b, std::int64_t row, int h) {
        const std::byte* from =
            s.from + b * s.from_batch + axis_row(s.from_map, p, row) * s.from_row + h * s.from_head;
        std::byte* to =
            s.to[p] + b * s.to_batch[p] + axis_row(s.to_map, p, row) * s.to_row + h * s.to_head;
        if (s.scale == nullptr) {
            std::memmove(to, from, static_cast<std::size_t>(s.bytes));
            return;
        }
        with_storage(s.dtype, [&](auto type) {
            using T = decltype(type);
            scale_row<T>(s, to, from,
                         s.scale + b * s.scale_batch + row * s.scale_row +
                             h * static_cast<std::int64_t>(sizeof(T)));
        });
    }
};

}  // namespace

std::unique_ptr<Mover> make_host_mover() {
    return std::make_unique<HostMover>();
}

}  // namespace xstage::ulysses
