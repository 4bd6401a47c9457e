#pragma once

#include "sim/node.hpp"

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

/// One of the recorded pair of H200s: rooms, rates and spread as fitted to its isolated bursts and
/// burst sequences; for bulk stores there is no private room.
inline Node h200_node(bool bulk) {
    constexpr double clock = 1.98;
    Node node;
    node.name = "h200x2";
    node.sms = 132;
    node.groups.assign(18, 6);
    node.groups.resize(24, 4);
    node.link_rate = 185.7 * clock;
    node.ingress_rate = 450;
    node.private_room = bulk ? 0 : 10203;
    node.shared_room = 43515;
    node.shared_cap = 11777;
    node.producer_rate = 25.6 * clock;
    node.arbitration_spread = 0.5;
    node.issue_rate = 32 * clock;
    node.local_rate = 4265.0 / 132;
    node.ack_ns = 200;
    node.visible_ns = 1900;
    node.fp8_tflops = 800;
    node.bf16_tflops = 650;
    node.memory_rate = 4200;
    return node;
}

}  // namespace xstage::sim::test
