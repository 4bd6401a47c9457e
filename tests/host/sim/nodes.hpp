#pragma once

#include "sim/scenario.hpp"

namespace xstage::sim::test {

/// The node of the paper: 148 SMs, R = 717 GB/s, Q = 4.25 MiB, 0.76 us to issue 32 KB per SM.
inline Node paper_node() {
    Node node;
    node.name = "paper";
    node.sms = 148;
    node.link_rate = node.ingress_rate = 717;
    node.shared_room = 4.25 * 1048576;
    node.issue_rate = 32768 / 760.0;
    node.gpus_measured = 8;
    return node;
}

/// One of the recorded pair of H200s, as its profile has it.
inline Node h200_node(bool bulk) {
    return read_node(XSTAGE_SOURCE_DIR "/data/nodes/h200x2/sim-node.json", bulk ? "bulk" : "st16");
}

}  // namespace xstage::sim::test
