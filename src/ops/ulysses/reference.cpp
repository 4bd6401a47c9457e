#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/ulysses/storage.hpp"
#include "xstage/sparse/mask.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ulysses {
namespace {

template <class T>
const T* head_of(const View& view, int batch, std::int64_t row, int head) {
    return static_cast<const T*>(view.data) + batch * view.batch_stride + row * view.row_stride +
           head * view.head_stride;
}

/// Whether a row attends to a key, where there is a mask.
class Kept {
  public:
    Kept(const AttentionCall& c, int batch, std::int64_t row, int head) : mask_(c.mask) {
        if (mask_ == nullptr) return;
        batch_ = mask_->batches() > 1 ? batch : 0;
        head_ = head / (c.heads_q / mask_->heads());
        u_ = row / sparse::kBlock;
    }
    bool operator()(std::int64_t key) const {
        return mask_ == nullptr || mask_->test(batch_, head_, u_, key / sparse::kBlock);
    }

  private:
    const sparse::BlockMask* mask_;
    std::int64_t batch_ = 0, head_ = 0, u_ = 0;
};

template <class T>
void one_row(const AttentionCall& c, int b, std::int64_t row, int head, std::vector<float>& score,
             std::vector<float>& sum) {
    const int kv_head = head / (c.heads_q / c.heads_kv);
    const std::int64_t keys =
        c.kv_lengths == nullptr ? c.rows_kv : std::int64_t{c.kv_lengths[b * c.kv_lengths_stride]};
    const T* q = head_of<T>(c.q, b, row, head);
    const Kept kept(c, b, row, head);
    float most = -std::numeric_limits<float>::infinity();
    bool any = false;
    for (std::int64_t j = 0; j < keys; ++j) {
        if (!kept(j)) continue;
        any = true;
        const T* k = head_of<T>(c.k, b, j, kv_head);
        float dot = 0;
        for (int e = 0; e < c.head_dim; ++e) dot += q[e].value() * k[e].value();
        score[static_cast<std::size_t>(j)] = dot * c.scale;
        most = std::max(most, score[static_cast<std::size_t>(j)]);
    }
    std::fill(sum.begin(), sum.end(), 0.0f);
    float total = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
        if (!kept(j)) continue;
        const float weight = std::exp(score[static_cast<std::size_t>(j)] - most);
        total += weight;
        const T* v = head_of<T>(c.v, b, j, kv_head);
        for (int e = 0; e < c.head_dim; ++e)
            sum[static_cast<std::size_t>(e)] += weight * v[e].value();
    }
    T* out = const_cast<T*>(head_of<T>(c.out, b, row, head));
    for (int e = 0; e < c.head_dim; ++e)
        out[e] = T::from(!any ? 0.0f : sum[static_cast<std::size_t>(e)] / total);
    if (c.lse.data != nullptr)
        c.lse.data[b * c.lse.batch_stride + head * c.lse.head_stride + row] =
            !any ? -std::numeric_limits<float>::infinity() : most + std::log(total);
}

}  // namespace

void reference_attention(const AttentionCall& call) {
    std::vector<float> score(static_cast<std::size_t>(call.rows_kv));
    std::vector<float> sum(static_cast<std::size_t>(call.head_dim));
    with_storage(call.dtype, [&](auto type) {
        for (int b = 0; b < call.batch; ++b)
            for (int h = 0; h < call.heads_q; ++h)
                for (std::int64_t row = 0; row < call.rows_q; ++row)
                    one_row<decltype(type)>(call, b, row, h, score, sum);
    });
}

View packed(void* data, std::int64_t rows, int heads, int dim) {
    const std::int64_t row = std::int64_t{heads} * dim;
    return {data, rows * row, row, dim};
}

}  // namespace xstage::ulysses
