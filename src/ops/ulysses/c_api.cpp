#include "xstage/xstage_sparse.h"
#include "xstage/xstage_ulysses.h"

#include "fabric/c_error.hpp"
#include "ops/sparse/handles.hpp"
#include "xstage/ulysses.hpp"
#include "xstage/ulysses/cudnn.hpp"
#include "xstage/ulysses/xstage_plug.hpp"

using namespace xstage;
using namespace xstage::fabric;

// The definition of src/fabric/c_api.cpp, word for word: handles are opaque to callers only.
struct xstage_fabric {
    Fabric fabric;
};

struct xstage_ulysses {
    std::unique_ptr<ulysses::UlyssesAttention> attention;
    std::string description;
    std::size_t ranks;
};

namespace {

using ulysses::View;

View view_of(const xstage_view& v) {
    return {v.data, v.batch_stride, v.row_stride, v.head_stride};
}
xstage_view to_c(const View& v) {
    return {v.data, v.batch_stride, v.row_stride, v.head_stride};
}
xstage_lse_view to_c(const ulysses::LseView& v) {
    return {v.data, v.batch_stride, v.head_stride};
}

[[noreturn]] void bad(const std::string& what) {
    throw Error(ErrorKind::kBadInput, what);
}

template <class Enum>
Enum enum_of(std::int32_t value, Enum last, const char* what) {
    if (value < 0 || value > static_cast<std::int32_t>(last))
        bad(std::string("there is no ") + what + " " + std::to_string(value));
    return static_cast<Enum>(value);
}

ulysses::AttentionKernel kernel_of(xstage_attention_kernel kernel, void* user) {
    return [kernel, user](const ulysses::AttentionCall& c) {
        xstage_attention_call call{};
        call.struct_size = sizeof call;
        call.rank = c.rank;
        call.batch = c.batch;
        call.rows_q = c.rows_q;
        call.rows_kv = c.rows_kv;
        call.heads_q = c.heads_q;
        call.heads_kv = c.heads_kv;
        call.head_dim = c.head_dim;
        call.dtype = static_cast<std::int32_t>(c.dtype);
        call.scale = c.scale;
        call.q = to_c(c.q);
        call.k = to_c(c.k);
        call.v = to_c(c.v);
        call.out = to_c(c.out);
        call.lse = to_c(c.lse);
        call.kv_lengths = c.kv_lengths;
        call.kv_lengths_stride = c.kv_lengths_stride;
        call.stream = c.stream;
        xstage_view own = call.out;
        if (c.own_out != nullptr) call.own_out = &own;
        if (const int code = kernel(user, &call); code != 0)
            throw Error(ErrorKind::kEnvironment,
                        "the attention kernel returned " + std::to_string(code));
        if (c.own_out != nullptr) *c.own_out = view_of(own);
    };
}

ulysses::Plug plug_of(const xstage_ulysses_options& o) {
    if (o.kernel != nullptr) return {kernel_of(o.kernel, o.user)};
    switch (o.builtin) {
        case XSTAGE_BUILTIN_AUTO:
            return {};
        case XSTAGE_BUILTIN_CUDNN:
            return ulysses::cudnn_plug();
        case XSTAGE_BUILTIN_XSTAGE:
            return ulysses::xstage_plug();
        case XSTAGE_BUILTIN_REFERENCE:
            return {ulysses::reference_attention, "reference", true, 128, false, true};
        default:
            bad("there is no built-in attention kernel " + std::to_string(o.builtin));
    }
}

ulysses::Problem problem_of(const xstage_ulysses_options& o, std::size_t world) {
    if (o.rows_q == nullptr) bad("rows_q must not be NULL");
    ulysses::Problem p;
    p.batch = o.batch;
    p.heads_q = o.heads_q;
    p.heads_kv = o.heads_kv;
    p.head_dim = o.head_dim;
    p.rows_q.assign(o.rows_q, o.rows_q + world);
    if (o.rows_kv != nullptr) p.rows_kv.assign(o.rows_kv, o.rows_kv + world);
    p.text_q = o.text_q;
    p.text_kv = o.text_kv;
    p.text_place = o.text_front != 0 ? ulysses::TextPlace::kFront : ulysses::TextPlace::kRear;
    p.dtype = enum_of(o.dtype, DType::kF64, "dtype");
    p.with_lse = o.with_lse != 0;
    p.with_lengths = o.with_lengths != 0;
    p.out_pitch = o.out_pitch;
    return p;
}

ulysses::Options options_of(const xstage_ulysses_options& o) {
    ulysses::Options options;
    options.plan.layout = enum_of(o.layout, ulysses::Layout::kScatter, "layout");
    options.attend = o.gathered_only == 0;
    options.masked = o.masked != 0;
    if (o.buffers != 0) options.buffers = o.buffers;
    options.plug = plug_of(o);
    options.plug.stores_to_out = o.kernel_returns_packed == 0;
    if (o.tile_rows != 0) options.plug.tile_rows = o.tile_rows;
    return options;
}

ulysses::Destination destination_of(const xstage_destination& d) {
    return {view_of(d.out), view_of(d.text_out), d.head_scale, d.head_scale_batch,
            d.head_scale_row};
}

ulysses::Norm norm_of(const xstage_norm& n) {
    return {enum_of(n.kind, ulysses::NormKind::kFullWidth, "norm"),
            enum_of(n.rounding, ulysses::NormRounding::kTwice, "rounding"), n.weight_fp32 != 0,
            n.weight, n.eps};
}

ulysses::Rotary rotary_of(const xstage_rotary& r) {
    return {enum_of(r.kind, ulysses::RotaryKind::kHalf, "rotation"),
            enum_of(r.table, ulysses::RotaryTable::kEvenOdd, "table"),
            enum_of(r.math, ulysses::RotaryMath::kEachRounded, "arithmetic"),
            r.table_fp32 != 0,
            r.dims,
            r.step == 0 ? 1 : r.step,
            r.cos,
            r.sin,
            r.batch_stride,
            r.row_stride,
            r.head_stride};
}

ulysses::Projection projection_of(const xstage_projection& p) {
    return {view_of(p.image),     view_of(p.text),     norm_of(p.norm),
            norm_of(p.text_norm), rotary_of(p.rotary), rotary_of(p.text_rotary)};
}

Streams streams_of(void* const* streams, std::size_t count) {
    if (count == 0) return {};
    if (streams == nullptr) bad("streams must not be NULL");
    return std::span<void* const>(streams, count);
}

ulysses::UlyssesAttention& existing(xstage_ulysses* attention) {
    if (attention == nullptr) bad("attention must not be NULL");
    return *attention->attention;
}

void give(const std::vector<ulysses::Result>& from, xstage_ulysses_result* to) {
    for (std::size_t i = 0; i < from.size(); ++i)
        to[i] = {to_c(from[i].out), to_c(from[i].text_out), to_c(from[i].lse),
                 to_c(from[i].text_lse)};
}

}  // namespace

int xstage_ulysses_create(xstage_fabric* fabric, const xstage_ulysses_options* given,
                          xstage_ulysses** attention) {
    return guarded([&] {
        if (fabric == nullptr || attention == nullptr) bad("fabric and attention must not be NULL");
        const xstage_ulysses_options o = fabric::sized(given);
        const auto world = static_cast<std::size_t>(fabric->fabric.world());
        auto made = std::make_unique<xstage_ulysses>();
        made->attention = std::make_unique<ulysses::UlyssesAttention>(
            fabric->fabric, problem_of(o, world), options_of(o));
        made->description = ulysses::describe(made->attention->plan());
        made->ranks = fabric->fabric.local_ranks().size();
        *attention = made.release();
    });
}

void xstage_ulysses_destroy(xstage_ulysses* attention) {
    delete attention;
}
const char* xstage_ulysses_describe(const xstage_ulysses* attention) {
    return attention->description.c_str();
}
size_t xstage_ulysses_memory_bytes(const xstage_ulysses* attention) {
    return attention->attention->memory_bytes();
}

int xstage_ulysses_heads(const xstage_ulysses* attention, int rank, int32_t q[2], int32_t kv[2]) {
    return guarded([&] {
        const ulysses::Heads& heads = existing(const_cast<xstage_ulysses*>(attention)).plan().heads;
        if (rank < 0 || rank >= static_cast<int>(heads.q.size()))
            bad("there is no rank " + std::to_string(rank));
        const auto i = static_cast<std::size_t>(rank);
        q[0] = heads.q[i].begin;
        q[1] = heads.q[i].end;
        kv[0] = heads.kv[i].begin;
        kv[1] = heads.kv[i].end;
    });
}

int xstage_ulysses_attend_and_scatter(xstage_ulysses* attention,
                                      const xstage_gathered_input* inputs, size_t count,
                                      void* const* streams, size_t stream_count,
                                      xstage_ulysses_result* results) {
    return guarded([&] {
        ulysses::UlyssesAttention& a = existing(attention);
        if (inputs == nullptr || results == nullptr) bad("inputs and results must not be NULL");
        std::vector<ulysses::GatheredInput> all;
        for (std::size_t i = 0; i < count; ++i) {
            const xstage_gathered_input& in = inputs[i];
            all.push_back({view_of(in.q), view_of(in.k), view_of(in.v), in.kv_lengths, in.scale,
                           destination_of(in.to)});
        }
        give(a.attend_and_scatter(all, streams_of(streams, stream_count)), results);
    });
}

int xstage_ulysses_attend(xstage_ulysses* attention, const xstage_sharded_input* inputs,
                          size_t count, void* const* streams, size_t stream_count,
                          xstage_ulysses_result* results) {
    return guarded([&] {
        ulysses::UlyssesAttention& a = existing(attention);
        if (inputs == nullptr || results == nullptr) bad("inputs and results must not be NULL");
        std::vector<ulysses::ShardedInput> all;
        for (std::size_t i = 0; i < count; ++i) {
            const xstage_sharded_input& in = inputs[i];
            all.push_back({projection_of(in.q), projection_of(in.k), projection_of(in.v),
                           in.kv_lengths, in.scale, destination_of(in.to)});
        }
        give(a.attend(all, streams_of(streams, stream_count)), results);
    });
}

int xstage_ulysses_use_buffer(xstage_ulysses* attention, int buffer) {
    return guarded([&] { existing(attention).use_buffer(buffer); });
}

int xstage_ulysses_out_memory(const xstage_ulysses* attention, int buffer, int rank,
                              xstage_view* out) {
    return guarded([&] {
        *out = to_c(existing(const_cast<xstage_ulysses*>(attention)).out_memory(buffer, rank));
    });
}

int xstage_ulysses_set_mask(xstage_ulysses* attention, const xstage_block_mask* mask) {
    return guarded([&] {
        if (mask == nullptr) bad("mask must not be NULL");
        existing(attention).set_mask(mask->mask);
    });
}
