#include <fmt/format.h>

#include "fabric/group.hpp"
#include "fabric/remote_rows.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {

struct StitchedTensor::Impl {
    Fabric::Impl& group;
    StitchedLayout layout;
    int buffers;
    int first_channel = -1;
    std::uint64_t signature = 0;
    std::vector<Range> ranges;                 ///< per buffer
    std::vector<std::vector<Range>> receives;  ///< per buffer, per local rank
    std::vector<std::vector<Poison>> outputs;  ///< per buffer: what to spoil on a broken group
    std::unique_ptr<RemoteRows> remote;        ///< of ranks on other nodes, where there are any

    ~Impl() {
        if (first_channel >= 0) group.give_channels(first_channel, buffers);
    }

    int local_index(int rank) const {
        for (std::size_t i = 0; i < group.local_ranks.size(); ++i)
            if (group.local_ranks[i] == rank) return static_cast<int>(i);
        throw Error(ErrorKind::kBadInput, fmt::format("rank {} is not in this process", rank));
    }

    void check_buffer(int buffer) const {
        if (buffer < 0 || buffer >= buffers)
            throw Error(ErrorKind::kBadInput, fmt::format("buffer {} of {}", buffer, buffers));
    }

    CallShape call(int buffer) const {
        check_buffer(buffer);
        return {static_cast<std::uint32_t>(first_channel), static_cast<std::uint32_t>(buffers),
                static_cast<std::uint32_t>(first_channel + buffer), signature};
    }

    void reserve() {
        for (int b = 0; b < buffers; ++b) {
            ranges.emplace_back(group.memory, layout.range_bytes);
            receives.emplace_back();
            for (int r : group.local_ranks)
                receives.back().push_back(layout.chunk_bytes[r] == 0
                                              ? Range()
                                              : Range(group.memory, layout.chunk_bytes[r]));
            outputs.emplace_back();
            for (std::size_t i = 0; i < group.local_ranks.size(); ++i)
                outputs.back().push_back({group.local_ranks[i], receives.back()[i].data(),
                                          layout.chunk_bytes[group.local_ranks[i]]});
        }
    }

    std::vector<Piece> pieces() {
        std::vector<Piece> all;
        for (int b = 0; b < buffers; ++b)
            for (const Segment& s : layout.segments) {
                Piece piece{s.owner, s.bytes, {}};
                if (group.same_node(s.owner)) piece.places.push_back({&ranges[b], s.range_offset});
                if (group.is_local(s.owner))
                    piece.places.push_back({&receives[b][local_index(s.owner)], s.owner_offset});
                all.push_back(piece);
            }
        return all;
    }

    void add_remote_rows(const plan::StoredBlocks& stored, const std::string& call) {
        std::vector<std::byte*> mine;
        for (const std::vector<Range>& receive : receives) mine.push_back(receive.front().data());
        remote = std::make_unique<RemoteRows>(group, layout, stored, ranges, mine, call);
    }

    void publish(int buffer, const Streams& streams) {
        if (remote) remote->send(buffer, call(buffer), streams);
        group.engine->publish(call(buffer), streams);
    }
    void acquire(int buffer, const Streams& streams) {
        if (remote) remote->receive(buffer, call(buffer), streams);
        group.engine->acquire(call(buffer), outputs[static_cast<std::size_t>(buffer)], streams);
    }
};

namespace {

LayoutSpec spec_of(const StitchedOptions& o, std::size_t page_bytes) {
    return {o.kind, o.order, o.rows, o.row_bytes, page_bytes, o.tile_rows, o.rank_order};
}

std::string call_of(const StitchedOptions& o) {
    std::string parts;
    for (const plan::RowPart& part : o.parts)
        parts += fmt::format("{}{}+{}", parts.empty() ? ", parts=" : " ", part.offset, part.bytes);
    std::uint64_t blocks = 0;
    const int world = static_cast<int>(o.rows.size());
    for (int pair = 0; o.stored && pair < world * world; ++pair)
        for (const plan::PutBlock& b : o.stored(pair / world, pair % world))
            for (std::uint64_t value : {static_cast<std::uint64_t>(pair), std::uint64_t{b.offset},
                                        std::uint64_t{b.stride}, static_cast<std::uint64_t>(b.rows),
                                        std::uint64_t{b.bytes}})
                blocks = protocol::mix(blocks, value);
    if (o.stored) parts += fmt::format(", blocks {:016x}", blocks);
    return fmt::format(
        "stitched_tensor({}{}, rows=[{}], row_bytes={}, dtype={}, order=[{}], buffers={}{})",
        o.kind == LayoutKind::kBatched ? "batched" : "padded",
        o.order == ChunkOrder::kPages ? " by pages" : "", fmt::join(o.rows, ", "), o.row_bytes,
        name_of(o.dtype), fmt::join(o.rank_order, ", "), o.buffers, parts);
}

std::uint64_t signature_of(const std::string& call) {
    std::uint64_t hash = 0;
    for (char c : call) hash = protocol::mix(hash, static_cast<unsigned char>(c));
    return hash;
}

}  // namespace

StitchedTensor::StitchedTensor(Fabric& fabric, const StitchedOptions& options) {
    fabric.check();
    Fabric::Impl& group = fabric.impl();
    const std::string call = call_of(options);
    plan::StoredBlocks stored;
    const Outcome planned = attempt([&] {
        if (static_cast<int>(options.rows.size()) != group.options.world)
            throw Error(ErrorKind::kBadInput,
                        fmt::format("rows for {} ranks in a group of {}", options.rows.size(),
                                    group.options.world));
        if (options.buffers < 1)
            throw Error(ErrorKind::kBadInput, "a stitched tensor needs a buffer");
        if (options.row_bytes % bytes_of(options.dtype) != 0)
            throw Error(ErrorKind::kBadInput, "row_bytes is not a whole number of elements");
        impl_.reset(new Impl{group,
                             make_layout(spec_of(options, group.memory->page_bytes())),
                             options.buffers,
                             -1,
                             signature_of(call),
                             {},
                             {},
                             {},
                             nullptr});
        if (group.several_nodes() || !options.parts.empty() || options.stored)
            stored = stored_blocks(options, impl_->layout);
        impl_->reserve();
        impl_->first_channel = group.take_channels(options.buffers);
    });
    group.agree(call, planned);
    // Everyone is here, so nobody's earlier kernels can still signal on these channels.
    const Outcome reset =
        attempt([&] { group.engine->reset_channels(impl_->first_channel, options.buffers); });
    group.agree(call + " channels", reset);
    group.build(call + " memory", impl_->pieces());
    if (group.several_nodes()) impl_->add_remote_rows(stored, call);
}
StitchedTensor::~StitchedTensor() = default;

const StitchedLayout& StitchedTensor::layout() const {
    return impl_->layout;
}
int StitchedTensor::buffers() const {
    return impl_->buffers;
}

void* StitchedTensor::range(int buffer) const {
    impl_->check_buffer(buffer);
    return impl_->ranges[buffer].data();
}

void* StitchedTensor::receive(int buffer, int rank) const {
    impl_->check_buffer(buffer);
    return impl_->receives[buffer][impl_->local_index(rank)].data();
}

CallShape StitchedTensor::call_shape(int buffer) const {
    return impl_->call(buffer);
}

void StitchedTensor::begin(int buffer, const Streams& streams) {
    impl_->group.check();
    impl_->group.engine->begin(impl_->call(buffer), streams);
}

void StitchedTensor::publish(int buffer, const Streams& streams) {
    impl_->group.check();
    impl_->publish(buffer, streams);
}

// Even on a broken group: whoever reads the output without looking must find NaN there.
void StitchedTensor::acquire(int buffer, const Streams& streams) {
    impl_->check_buffer(buffer);
    const bool broken = impl_->group.engine->failure().has_value();
    impl_->acquire(buffer, streams);
    if (broken) impl_->group.check();
}

void StitchedTensor::exchange(int buffer, const Streams& streams) {
    const CallShape call = impl_->call(buffer);
    const bool broken = impl_->group.engine->failure().has_value();
    if (impl_->remote) {
        impl_->publish(buffer, streams);
        impl_->acquire(buffer, streams);
    } else {
        impl_->group.engine->exchange(call, impl_->outputs[buffer], streams);
    }
    if (broken) impl_->group.check();
}

void StitchedTensor::hand_over(int buffer, StitchedTensor& next, int next_buffer,
                               const Streams& streams) {
    if (&impl_->group != &next.impl_->group)
        throw Error(ErrorKind::kBadInput, "the next tensor belongs to another group");
    const CallShape call = impl_->call(buffer);
    const CallShape begun = next.impl_->call(next_buffer);
    const bool broken = impl_->group.engine->failure().has_value();
    if (impl_->remote) {
        impl_->publish(buffer, streams);
        impl_->group.engine->begin(begun, streams);
        impl_->acquire(buffer, streams);
    } else {
        impl_->group.engine->hand_over(call, impl_->outputs[buffer], begun, streams);
    }
    if (broken) impl_->group.check();
}

struct LocalAlias::Impl {
    StitchedLayout layout;
    std::vector<int> ranks;
    std::vector<Range> stitched;
    std::vector<Range> natural;
    std::vector<std::size_t> chunk_start;

    std::size_t index(int rank) const {
        for (std::size_t i = 0; i < ranks.size(); ++i)
            if (ranks[i] == rank) return i;
        throw Error(ErrorKind::kBadInput, fmt::format("rank {} is not in this process", rank));
    }
};

LocalAlias::LocalAlias(Fabric& fabric, const StitchedLayout& layout, std::size_t row_bytes)
    : impl_(new Impl{layout, fabric.local_ranks(), {}, {}, {}}) {
    if (row_bytes == 0 || row_bytes > layout.row_stride)
        throw Error(ErrorKind::kBadInput, fmt::format("rows of {} bytes do not fit a stride of {}",
                                                      row_bytes, layout.row_stride));
    Memory& memory = *fabric.impl().memory;
    std::size_t at = 0;
    for (std::size_t bytes : layout.chunk_bytes) {
        impl_->chunk_start.push_back(at);
        at += bytes;
    }
    for (int rank : impl_->ranks) {
        Range& stitched = impl_->stitched.emplace_back(fabric.impl().memory, layout.range_bytes);
        Range& natural = impl_->natural.emplace_back(fabric.impl().memory, layout.range_bytes);
        for (const Segment& s : layout.segments) {
            const Memory::Handle handle = memory.allocate(s.bytes, rank);
            const Outcome mapped = attempt([&] {
                stitched.map(s.range_offset, s.bytes, handle);
                natural.map(impl_->chunk_start[s.owner] + s.owner_offset, s.bytes, handle);
            });
            memory.release(handle);
            if (!mapped.ok) throw Error(mapped.kind, mapped.reason);
        }
    }
}
LocalAlias::~LocalAlias() = default;

void* LocalAlias::stitched(int rank) const {
    return impl_->stitched[impl_->index(rank)].data();
}
void* LocalAlias::natural(int rank) const {
    return impl_->natural[impl_->index(rank)].data();
}
std::size_t LocalAlias::natural_offset(int chunk, std::int64_t row) const {
    return impl_->chunk_start.at(chunk) + impl_->layout.receive_offset(chunk, row);
}
std::size_t LocalAlias::bytes() const {
    return impl_->layout.range_bytes;
}

}  // namespace xstage::fabric
