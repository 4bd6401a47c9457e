#pragma once

// Which heads of which rows a group of lanes sends, and in which order: pieces of rows, dealt out
// to all groups of a launch in turn. The host works out what takes divisions: before a group's
// first load they are most of a short launch.

#include "ops/ulysses/mover.hpp"

namespace xstage::ulysses::kernels {

/// Heads of one row, one after the other in the sender's order of destinations.
struct Piece {
    int b;
    std::int64_t row;
    int to, slot;  ///< destination of the first head, and heads of this destination before it
    int heads;
};

/// Rows of a part with the heads that go out in one walk: of all destinations in turn, or of one.
struct Walk {
    std::int64_t count;  ///< pieces of all rows
    int to;              ///< of row 0's first head; of all in turn the next row begins one further
    int heads;
    int pieces;  ///< of a row, about equally long: neighbours in a warp wait for each other
    int length;  ///< heads of a piece
    int row_step, piece_step, to_step;  ///< from a group's piece to its next
};

XSTAGE_HD inline bool is_in_turn(const HeadScatter& s) {
    return s.order == SendOrder::kInterleaved;
}

/// A group's way through a walk.
class PieceCursor {
  public:
    /// At piece `i`.
    XSTAGE_HD PieceCursor(const HeadScatter& s, const Walk& w, std::int64_t i)
        : row_(quotient(i, w.pieces)), piece_(static_cast<int>(i - row_ * w.pieces)), to_(w.to) {
        if (is_in_turn(s)) {
            to_ += static_cast<int>(row_ - quotient(row_, s.world) * s.world);
            if (to_ >= s.world) to_ -= s.world;
        }
        keep_row_inside(s);
    }
    XSTAGE_HD Piece piece(const Walk& w) const {
        const int slot = piece_ * w.length;
        return {b_, row_, to_, slot, w.length < w.heads - slot ? w.length : w.heads - slot};
    }
    XSTAGE_HD void advance(const HeadScatter& s, const Walk& w) {
        piece_ += w.piece_step;
        const int carry = piece_ >= w.pieces ? 1 : 0;
        piece_ -= carry != 0 ? w.pieces : 0;
        to_ += w.to_step + (is_in_turn(s) ? carry : 0);
        if (to_ >= s.world) to_ -= s.world;
        row_ += w.row_step + carry;
        keep_row_inside(s);
    }

  private:
    XSTAGE_HD void keep_row_inside(const HeadScatter& s) {
        if (row_ < s.rows) return;
        const std::int64_t samples = quotient(row_, s.rows);
        b_ += static_cast<int>(samples);
        row_ -= samples * s.rows;
    }

    std::int64_t row_;
    int b_ = 0;
    int piece_, to_;
};

/// All walks of a launch, in its order.
struct Walks {
    static constexpr int kMost = HeadExchange::kMost * fabric::kMaxRanks;
    Walk walk[kMost];
    int part[kMost];
    int count = 0;

    std::int64_t pieces() const {
        std::int64_t all = 0;
        for (int w = 0; w < count; ++w) all += walk[w].count;
        return all;
    }
};

inline bool is_plain(const HeadScatter& s) {
    return s.norm.kind == NormKind::kNone && s.rotary.kind == RotaryKind::kNone;
}

/// Pieces of parts without norm and rotation have at most `plain` heads, the others' `longest`;
/// both even.
inline Walks walks_of(const HeadExchange& all, int plain, int longest) {
    Walks walks;
    for (int p = 0; p < all.count; ++p) {
        const HeadScatter& s = all.part[p];
        const int most = is_plain(s) ? plain : longest;
        const std::int64_t rows = s.rows * s.batch;
        if (rows == 0) continue;
        for (int turn = 0; turn < (is_in_turn(s) ? 1 : s.world); ++turn) {
            Walk w{};
            w.to = send_step(s.order, s.rank, s.world, rows, is_in_turn(s) ? 0 : turn * rows)
                       .destination;
            w.heads = is_in_turn(s) ? sent_heads(s) : s.head_count[w.to];
            if (w.heads == 0) continue;
            w.pieces = (w.heads + most - 1) / most;
            w.length = ((w.heads + w.pieces - 1) / w.pieces + 1) / 2 * 2;
            w.count = rows * w.pieces;
            walks.part[walks.count] = p;
            walks.walk[walks.count++] = w;
        }
    }
    return walks;
}

/// For a launch of so many groups.
inline void set_steps(const HeadExchange& all, Walks& walks, std::int64_t groups) {
    for (int i = 0; i < walks.count; ++i) {
        Walk& w = walks.walk[i];
        const HeadScatter& s = all.part[walks.part[i]];
        w.row_step = static_cast<int>(groups / w.pieces);
        w.piece_step = static_cast<int>(groups % w.pieces);
        w.to_step = is_in_turn(s) ? w.row_step % s.world : 0;
    }
}

}  // namespace xstage::ulysses::kernels
