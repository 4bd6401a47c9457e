#pragma once

#include <string>
#include <vector>

#include "fabric/group.hpp"

namespace xstage::fabric {

/// The chunks of a stitched tensor whose owners are on other nodes. In the range each is local
/// memory; send() packs this rank's part of its rows and puts them into the owner's inbox, chunk by
/// chunk with a signal each, and receive() unpacks what came. The credits that order the reuse of
/// a receive buffer order that of the boxes too: a sender has one before it packs again.
class RemoteRows {
  public:
    /// Collective. Maps memory into those places of `ranges` (one per buffer) that others own.
    RemoteRows(Fabric::Impl& group, const StitchedLayout& layout, const plan::StoredBlocks& stored,
               std::vector<Range>& ranges, const std::vector<std::byte*>& receives,
               const std::string& call);

    void send(int buffer, const CallShape& call, const Streams& streams) const;
    void receive(int buffer, const CallShape& call, const Streams& streams) const;

  private:
    struct Buffer {
        std::vector<Range> staged;  ///< per rank: its rows in their own order
        PutTable sends, receives;
    };
    void stage(Range& range, Buffer& buffer) const;
    PutTable table(bool sending, const Buffer& buffer, int number, std::byte* receive) const;

    Fabric::Impl& group_;
    const StitchedLayout& layout_;
    plan::PutPlan plan_;
    std::size_t outbox_bytes_, inbox_bytes_, signal_bytes_;  ///< of one buffer
    HeapMemory boxes_;                                       ///< outboxes, inboxes, signals
    std::vector<Buffer> buffers_;
};

/// What the options say, equal parts in the order of the ranks where they say nothing. Throws Error
/// (kBadInput) for parts that leave the row or meet, and for blocks that leave the owner's memory.
plan::StoredBlocks stored_blocks(const StitchedOptions& options, const StitchedLayout& layout);

}  // namespace xstage::fabric
