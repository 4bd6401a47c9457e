#pragma once

// What UlyssesAttention must do on any backend. A case holds the whole problem on the host; each
// rank is given its part, and the results come back to be compared with one rank's attention over
// everything, which is the same kernel followed by nothing but a permutation.

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/ulysses/storage.hpp"
#include "xstage/ulysses.hpp"

namespace xstage::ulysses::suite {

/// [batch, rows, heads, dim] in the dtype, packed.
struct Tensor {
    fabric::DType dtype = fabric::DType::kBf16;
    int batch = 0;
    std::int64_t rows = 0;
    int heads = 0, dim = 0;
    std::vector<std::byte> bytes;

    Tensor() = default;
    Tensor(fabric::DType t, int b, std::int64_t r, int h, int d)
        : dtype(t),
          batch(b),
          rows(r),
          heads(h),
          dim(d),
          bytes(static_cast<std::size_t>(b * r * h * d) * fabric::bytes_of(t)) {}
    std::size_t element() const { return fabric::bytes_of(dtype); }
    View view() { return packed(bytes.data(), rows, heads, dim); }
    void fill(std::mt19937& random, float scale = 1) {
        std::normal_distribution<float> normal(0, scale);
        with_storage(dtype, [&](auto type) {
            using T = decltype(type);
            for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
                const T x = T::from(normal(random));
                std::memcpy(&bytes[i], &x, sizeof x);
            }
        });
    }
    double at(int b, std::int64_t r, int h, int e) const {
        double value = 0;
        const std::size_t i = ((static_cast<std::size_t>(b) * rows + r) * heads + h) * dim + e;
        with_storage(dtype, [&](auto type) {
            decltype(type) x;
            std::memcpy(&x, &bytes[i * sizeof x], sizeof x);
            value = x.value();
        });
        return value;
    }
    /// Copies rows [first, first + count) of these heads into another tensor's rows.
    void copy_rows(std::int64_t first, std::int64_t count, int head, int head_count, Tensor& to,
                   std::int64_t to_first) const {
        const std::size_t run = static_cast<std::size_t>(head_count) * dim * element();
        for (int b = 0; b < batch; ++b)
            for (std::int64_t r = 0; r < count; ++r)
                std::memcpy(
                    &to.bytes[((static_cast<std::size_t>(b) * to.rows + to_first + r) * to.heads) *
                              dim * element()],
                    &bytes[((static_cast<std::size_t>(b) * rows + first + r) * heads + head) * dim *
                           element()],
                    run);
    }
};

/// A whole problem: image rows in rank order, and text apart.
struct Case {
    Problem problem;
    Tensor q, k, v, text_q, text_k, text_v;
    std::vector<std::int32_t> lengths;  ///< per sample, when the problem has them

    explicit Case(const Problem& p, unsigned seed = 1, float scale = 1) : problem(p) {
        std::mt19937 random(seed);
        q = Tensor(p.dtype, p.batch, p.image_q(), p.heads_q, p.head_dim);
        k = Tensor(p.dtype, p.batch, p.image_kv(), p.kv_heads(), p.head_dim);
        v = k;
        text_q = Tensor(p.dtype, p.batch, p.text_q, p.heads_q, p.head_dim);
        text_k = Tensor(p.dtype, p.batch, p.text_kv, p.kv_heads(), p.head_dim);
        text_v = text_k;
        for (Tensor* t : {&q, &k, &v, &text_q, &text_k, &text_v}) t->fill(random, scale);
        const std::int64_t keys = p.image_kv() + p.text_kv;
        for (int b = 0; b < p.batch && p.with_lengths; ++b)
            lengths.push_back(static_cast<std::int32_t>(b == 0 ? keys : keys - keys * b / p.batch));
    }

    /// Text and image rows of these heads as one tensor, in the problem's order.
    Tensor joined(const Tensor& image, const Tensor& text, HeadRange heads) const {
        Tensor all(problem.dtype, problem.batch, image.rows + text.rows, heads.count(),
                   problem.head_dim);
        const bool front = problem.text_place == TextPlace::kFront;
        image.copy_rows(0, image.rows, heads.begin, heads.count(), all, front ? text.rows : 0);
        text.copy_rows(0, text.rows, heads.begin, heads.count(), all, front ? 0 : image.rows);
        return all;
    }
};

/// Attention over everything: [batch, rows, heads, dim] and LSE [batch, heads, rows].
struct Whole {
    Tensor out;
    std::vector<float> lse;
};

/// By `kernel`, on the host, in one call.
inline Whole whole(Case& c, const AttentionKernel& kernel) {
    const Problem& p = c.problem;
    Tensor q = c.joined(c.q, c.text_q, {0, p.heads_q});
    Tensor k = c.joined(c.k, c.text_k, {0, p.kv_heads()});
    Tensor v = c.joined(c.v, c.text_v, {0, p.kv_heads()});
    Whole w{q, std::vector<float>(static_cast<std::size_t>(p.batch * p.heads_q * q.rows))};
    AttentionCall call;
    call.batch = p.batch;
    call.rows_q = q.rows;
    call.rows_kv = k.rows;
    call.heads_q = p.heads_q;
    call.heads_kv = p.kv_heads();
    call.head_dim = p.head_dim;
    call.dtype = p.dtype;
    call.scale = 1.0f / std::sqrt(static_cast<float>(p.head_dim));
    call.q = q.view();
    call.k = k.view();
    call.v = v.view();
    call.out = w.out.view();
    call.lse = {w.lse.data(), p.heads_q * q.rows, q.rows};
    call.kv_lengths = p.with_lengths ? c.lengths.data() : nullptr;
    call.kv_lengths_stride = 1;
    kernel(call);
    return w;
}

/// A kernel that takes a destination per rank, out of one that does not.
inline AttentionKernel with_peers(AttentionKernel kernel) {
    return [kernel](const AttentionCall& call) {
        if (call.peers == 0) return kernel(call);
        AttentionCall part = call;
        part.peers = 0;
        for (int r = 0; r < call.peers; ++r) {
            part.rows_q = call.peer_rows[r];
            part.out = call.peer_out[r];
            if (part.rows_q == 0) continue;
            kernel(part);
            part.q.data = static_cast<std::byte*>(part.q.data) +
                          part.rows_q * part.q.row_stride *
                              static_cast<std::int64_t>(fabric::bytes_of(call.dtype));
            if (part.lse.data != nullptr) part.lse.data += part.rows_q;
        }
    };
}

/// In float64, from the stored values.
inline std::vector<double> whole_f64(Case& c) {
    const Problem& p = c.problem;
    const Tensor q = c.joined(c.q, c.text_q, {0, p.heads_q});
    const Tensor k = c.joined(c.k, c.text_k, {0, p.kv_heads()});
    const Tensor v = c.joined(c.v, c.text_v, {0, p.kv_heads()});
    std::vector<double> out;
    for (int b = 0; b < p.batch; ++b)
        for (std::int64_t r = 0; r < q.rows; ++r)
            for (int h = 0; h < p.heads_q; ++h) {
                const int kv = h / (p.heads_q / p.kv_heads());
                const std::int64_t keys =
                    p.with_lengths ? c.lengths[static_cast<std::size_t>(b)] : k.rows;
                std::vector<double> score(static_cast<std::size_t>(keys));
                double most = -INFINITY, total = 0;
                for (std::int64_t j = 0; j < keys; ++j) {
                    double dot = 0;
                    for (int e = 0; e < p.head_dim; ++e)
                        dot += q.at(b, r, h, e) * k.at(b, j, kv, e);
                    score[static_cast<std::size_t>(j)] =
                        dot / std::sqrt(static_cast<double>(p.head_dim));
                    most = std::max(most, score[static_cast<std::size_t>(j)]);
                }
                std::vector<double> sum(static_cast<std::size_t>(p.head_dim), 0.0);
                for (std::int64_t j = 0; j < keys; ++j) {
                    const double w = std::exp(score[static_cast<std::size_t>(j)] - most);
                    total += w;
                    for (int e = 0; e < p.head_dim; ++e)
                        sum[static_cast<std::size_t>(e)] += w * v.at(b, j, kv, e);
                }
                for (double s : sum) out.push_back(keys == 0 ? 0 : s / total);
            }
    return out;
}

/// How the suite reaches a rank's memory: plain on `host`, copies on a GPU.
class Device {
  public:
    virtual ~Device() = default;
    virtual fabric::Streams streams() const { return {}; }
    /// Memory of a local rank that lives as long as this, holding these bytes.
    virtual void* upload(int rank, const void* bytes, std::size_t size) = 0;
    virtual void download(int rank, void* to, const void* from, std::size_t size) = 0;
};

class HostDevice final : public Device {
  public:
    void* upload(int, const void* bytes, std::size_t size) override {
        kept_.emplace_back(new std::byte[size + 1]);
        if (size > 0) std::memcpy(kept_.back().get(), bytes, size);
        return kept_.back().get();
    }
    void download(int, void* to, const void* from, std::size_t size) override {
        std::memcpy(to, from, size);
    }

  private:
    std::vector<std::unique_ptr<std::byte[]>> kept_;
};

inline View upload(Device& device, int rank, Tensor& t) {
    if (t.bytes.empty()) return {};
    View view = t.view();
    view.data = device.upload(rank, t.bytes.data(), t.bytes.size());
    return view;
}

inline std::int64_t first_row(const std::vector<std::int64_t>& rows, int rank) {
    std::int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += rows[static_cast<std::size_t>(r)];
    return first;
}

/// The rank's rows of all heads. With `fused`, views into one [batch, rows, 3 * width + gap]
/// projection.
inline ShardedInput shard(Device& device, Case& c, int rank, bool fused = false) {
    const Problem& p = c.problem;
    const std::vector<std::int64_t>& kv = p.rows_kv.empty() ? p.rows_q : p.rows_kv;
    const auto i = static_cast<std::size_t>(rank);
    Tensor q(p.dtype, p.batch, p.rows_q[i], p.heads_q, p.head_dim);
    Tensor k(p.dtype, p.batch, kv[i], p.kv_heads(), p.head_dim);
    Tensor v = k;
    c.q.copy_rows(first_row(p.rows_q, rank), q.rows, 0, q.heads, q, 0);
    c.k.copy_rows(first_row(kv, rank), k.rows, 0, k.heads, k, 0);
    c.v.copy_rows(first_row(kv, rank), v.rows, 0, v.heads, v, 0);
    ShardedInput in;
    if (fused && p.rows_q[i] == kv[i] && q.rows > 0) {
        const int gap = 8 / static_cast<int>(q.dim) + 1;  // whole heads of something else
        Tensor all(p.dtype, p.batch, q.rows, q.heads + 2 * k.heads + gap, p.head_dim);
        std::memset(all.bytes.data(), 0xff, all.bytes.size());
        const std::size_t head = static_cast<std::size_t>(p.head_dim) * q.element();
        for (int b = 0; b < p.batch; ++b)
            for (std::int64_t r = 0; r < q.rows; ++r) {
                std::byte* row =
                    &all.bytes[static_cast<std::size_t>(b * q.rows + r) * all.heads * head];
                const std::size_t at = static_cast<std::size_t>(b * q.rows + r);
                std::memcpy(row, &q.bytes[at * q.heads * head], q.heads * head);
                std::memcpy(row + q.heads * head, &k.bytes[at * k.heads * head], k.heads * head);
                std::memcpy(row + (q.heads + k.heads) * head, &v.bytes[at * k.heads * head],
                            k.heads * head);
            }
        in.q.image = in.k.image = in.v.image = upload(device, rank, all);
        in.k.image.data = static_cast<std::byte*>(in.q.image.data) + q.heads * head;
        in.v.image.data = static_cast<std::byte*>(in.q.image.data) + (q.heads + k.heads) * head;
    } else {
        in.q.image = upload(device, rank, q);
        in.k.image = upload(device, rank, k);
        in.v.image = upload(device, rank, v);
    }
    in.q.text = upload(device, rank, c.text_q);
    in.k.text = upload(device, rank, c.text_k);
    in.v.text = upload(device, rank, c.text_v);
    if (p.with_lengths)
        in.kv_lengths =
            static_cast<std::int32_t*>(device.upload(rank, c.lengths.data(), c.lengths.size() * 4));
    return in;
}

/// Everything of the rank's heads, as a framework's own first all-to-all leaves it.
inline GatheredInput gather(Device& device, Case& c, const Heads& heads, int rank) {
    const Problem& p = c.problem;
    const auto i = static_cast<std::size_t>(rank);
    Tensor q = c.joined(c.q, c.text_q, heads.q[i]);
    Tensor k = c.joined(c.k, c.text_k, heads.kv[i]);
    Tensor v = c.joined(c.v, c.text_v, heads.kv[i]);
    GatheredInput in;
    in.q = upload(device, rank, q);
    in.k = upload(device, rank, k);
    in.v = upload(device, rank, v);
    if (p.with_lengths)
        in.kv_lengths =
            static_cast<std::int32_t*>(device.upload(rank, c.lengths.data(), c.lengths.size() * 4));
    return in;
}

/// Bytes of [rows, heads, dim] of one sample.
inline std::vector<std::byte> download(Device& device, int rank, const View& view,
                                       std::int64_t rows, int heads, int dim, std::size_t element) {
    const std::size_t run = static_cast<std::size_t>(dim) * element;
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * heads * run);
    if (rows == 0) return bytes;
    // One copy of the whole span, since a copy per row costs a GPU test its time.
    const std::size_t row = static_cast<std::size_t>(view.row_stride) * element;
    std::vector<std::byte> span(row * static_cast<std::size_t>(rows - 1) +
                                static_cast<std::size_t>(view.head_stride) * element * (heads - 1) +
                                run);
    device.download(rank, span.data(), view.data, span.size());
    for (std::int64_t r = 0; r < rows; ++r)
        for (int h = 0; h < heads; ++h)
            std::memcpy(&bytes[(static_cast<std::size_t>(r) * heads + h) * run],
                        &span[r * row + static_cast<std::size_t>(h) * view.head_stride * element],
                        run);
    return bytes;
}

/// The first difference between a rank's result and the same rows of the whole, "" when there is
/// none.
inline std::string compare(Device& device, const Case& c, const Whole& w, const Result& result,
                           int rank) {
    const Problem& p = c.problem;
    const std::int64_t rows = p.rows_q[static_cast<std::size_t>(rank)];
    const bool front = p.text_place == TextPlace::kFront;
    const std::int64_t first = first_row(p.rows_q, rank) + (front ? p.text_q : 0);
    const std::size_t row = static_cast<std::size_t>(p.heads_q) * p.head_dim * w.out.element();
    const auto where = [&](const char* what, int sample, std::size_t byte) {
        const std::size_t head = static_cast<std::size_t>(p.head_dim) * w.out.element();
        return std::string(what) + " of rank " + std::to_string(rank) + ", sample " +
               std::to_string(sample) + ", row " + std::to_string(byte / row) + ", head " +
               std::to_string(byte % row / head) + ", element " +
               std::to_string(byte % head / w.out.element());
    };
    for (int b = 0; b < p.batch; ++b) {
        const std::byte* expected = &w.out.bytes[static_cast<std::size_t>(b) * w.out.rows * row];
        if (rows > 0) {
            const auto got = download(device, rank, result.samples[static_cast<std::size_t>(b)],
                                      rows, p.heads_q, p.head_dim, w.out.element());
            for (std::size_t i = 0; i < got.size(); ++i)
                if (got[i] != expected[static_cast<std::size_t>(first) * row + i])
                    return where("out", b, i);
        }
        if (p.text_q > 0) {
            View text = result.text_out;
            text.data = static_cast<std::byte*>(text.data) +
                        static_cast<std::size_t>(b * text.batch_stride) * w.out.element();
            const auto got =
                download(device, rank, text, p.text_q, p.heads_q, p.head_dim, w.out.element());
            const std::size_t at = static_cast<std::size_t>(front ? 0 : p.image_q()) * row;
            for (std::size_t i = 0; i < got.size(); ++i)
                if (got[i] != expected[at + i]) return where("text", b, i);
        }
        for (int h = 0; h < p.heads_q && p.with_lse; ++h) {
            const float* lse = &w.lse[static_cast<std::size_t>((b * p.heads_q + h) * w.out.rows)];
            const auto differs = [&](const LseView& view, std::int64_t count, std::int64_t at) {
                if (count == 0) return false;
                std::vector<float> got(static_cast<std::size_t>(count));
                device.download(rank, got.data(),
                                view.data + b * view.batch_stride + h * view.head_stride,
                                got.size() * 4);
                return std::memcmp(got.data(), lse + at, got.size() * 4) != 0;
            };
            if (differs(result.lse, rows, first))
                return where("lse", b, static_cast<std::size_t>(h));
            if (differs(result.text_lse, p.text_q, front ? 0 : p.image_q()))
                return where("text lse", b, static_cast<std::size_t>(h));
        }
    }
    return {};
}

}  // namespace xstage::ulysses::suite
