#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "fake_node.hpp"
#include "probe/probe.hpp"
#include "probe/session.hpp"
#include "temporary_directory.hpp"
#include "trace/measurement_json.hpp"
#include "xstage/documents.hpp"

namespace xstage::probe {
namespace {

using test::FakeNode;
using testing::HasSubstr;
using xstage::test::TemporaryDirectory;

const SamplePolicy kPolicy{.samples = 4, .retries = 1, .warm_up_ms = 1};
const ClockJudge kJudge{GigaHertz{2.0}};

Step store_step(const std::string& phase, std::int64_t bytes, const std::string& path = "st16") {
    StoreConfig config;
    config.path = path;
    config.producers = 4;
    config.bytes = bytes;
    return {phase, config, 1e6};
}

Measurements empty_document(const FakeNode& node) {
    Measurements document;
    document.provenance.gpus = node.info().gpus;
    document.provenance.tool_version = "0";
    document.provenance.line_rate = BytesPerNanosecond{450};
    return document;
}

TEST(Session, EveryKindOfStepBecomesARow) {
    FakeNode node;
    Measurements document = empty_document(node);
    StoreConfig all_but_one;
    all_but_one.producers = 7;
    all_but_one.bytes = 1000;
    all_but_one.sm_mask = {true, true, false, true, true, true, true, true};
    const std::vector<Step> steps{
        store_step("isolated", 1024),
        {"visible", VisibleConfig{.producers = 4, .bytes = 0}, 0},
        {"visible", VisibleConfig{.producers = 4, .bytes = 4096}, 0},
        {"per_sm", SmCase{"some", all_but_one}, 0},
        {"rates", RateConfig{"copy_engine", "write", Target::kRemote, 4000}, 0},
        {"litmus", LitmusConfig{"bulk", LitmusFence::kWaitRead, true, 77}, 0}};
    const SessionResult result = run_session(node, steps, kPolicy, kJudge, {}, document);
    EXPECT_EQ(result.failed_checks, 0);
    ASSERT_EQ(document.bursts.size(), 1u);
    EXPECT_NEAR(document.bursts[0].issue[0].cycles.max.value(), 0.03 * 1024 + 3, 1e-9);
    ASSERT_EQ(document.visible.size(), 1u) << "the bare flag is no visibility row";
    EXPECT_EQ(document.flag_round_trip->ns.value(), 4000);
    ASSERT_EQ(document.per_sm.size(), 1u);
    ASSERT_EQ(document.per_sm[0].issue.size(), 8u);
    EXPECT_FALSE(document.per_sm[0].issue[2]);
    EXPECT_DOUBLE_EQ(document.per_sm[0].issue[5]->value(), 35);
    EXPECT_EQ(document.sm_groups.size(), 2u);
    ASSERT_EQ(document.rates.size(), 1u);
    EXPECT_DOUBLE_EQ(document.rates[0].rate.value(), 400);
    EXPECT_EQ(document.rates[0].counted->value(), document.rates[0].bytes.value());
    ASSERT_EQ(document.litmus.size(), 1u);
    EXPECT_EQ(document.litmus[0].fence, "wait_group.read");
    EXPECT_EQ(document.litmus[0].trials, 77);
    EXPECT_FALSE(document.litmus[0].formally_required);
}

TEST(Session, StaleReadsFailOnlyWhereTheFenceIsSufficient) {
    FakeNode node;
    node.stale = 5;
    Measurements document = empty_document(node);
    const auto cell = [](LitmusFence fence) {
        return Step{"litmus", LitmusConfig{"st16", fence, true, 100}, 0};
    };
    EXPECT_EQ(run_session(node, {cell(LitmusFence::kNothing)}, kPolicy, kJudge, {}, document)
                  .failed_checks,
              0);
    EXPECT_EQ(run_session(node, {cell(LitmusFence::kReleaseSys)}, kPolicy, kJudge, {}, document)
                  .failed_checks,
              1);
    EXPECT_THAT(document.provenance.warnings.back(), HasSubstr("release.sys"));
    EXPECT_EQ(run_session(node, {{"visible", VisibleConfig{.producers = 4, .bytes = 512}, 0}},
                          kPolicy, kJudge, {}, document)
                  .failed_checks,
              1);
}

TEST(Session, WhatTheNodeCannotDoIsSkippedWithItsReason) {
    FakeNode node;
    Measurements document = empty_document(node);
    run_session(node,
                {store_step("paths", 4096, "tensor"), store_step("paths", 8192, "tensor"),
                 store_step("paths", 4096)},
                kPolicy, kJudge, {}, document);
    EXPECT_EQ(document.bursts.size(), 1u);
    ASSERT_EQ(document.provenance.warnings.size(), 1u);
    EXPECT_THAT(document.provenance.warnings[0],
                HasSubstr("2 configuration(s) skipped: no tensor maps here"));
}

TEST(Session, LostBytesFailTheRunAndItGoesOn) {
    FakeNode node;
    node.before_store = [](const StoreConfig& config) {
        if (config.bytes == 2048) throw Error(ErrorKind::kCheckFailed, "4 words did not arrive");
    };
    Measurements document = empty_document(node);
    const SessionResult result = run_session(
        node,
        {store_step("isolated", 1024), store_step("isolated", 2048), store_step("isolated", 4096)},
        kPolicy, kJudge, {}, document);
    EXPECT_EQ(result.failed_checks, 1);
    EXPECT_EQ(document.bursts.size(), 2u);
    EXPECT_THAT(document.provenance.warnings[0], HasSubstr("4 words did not arrive"));
}

TEST(Session, ABrokenDeviceEndsTheRunWithWhatThereIsSaved) {
    FakeNode node;
    node.before_store = [](const StoreConfig& config) {
        if (config.bytes == 2048) throw Error(ErrorKind::kTimedOut, "CTA 3 waited in vain");
    };
    Measurements document = empty_document(node), saved;
    SessionHooks hooks;
    hooks.save = [&](const Measurements& partial) { saved = partial; };
    const std::string message = xstage::test::error_of(ErrorKind::kTimedOut, [&] {
        run_session(node,
                    {store_step("isolated", 1024), store_step("isolated", 2048),
                     store_step("isolated", 4096)},
                    kPolicy, kJudge, hooks, document);
    });
    EXPECT_THAT(message, HasSubstr("2048 B"));
    EXPECT_EQ(saved.bursts.size(), 1u);
    EXPECT_THAT(saved.provenance.warnings.at(0), HasSubstr("CTA 3 waited in vain"));
}

TEST(Session, InterruptionKeepsTheRowsAndSaysSo) {
    FakeNode node;
    Measurements document = empty_document(node), saved;
    SessionHooks hooks;
    hooks.interrupted = [&] { return node.launches == 2; };
    hooks.save = [&](const Measurements& partial) { saved = partial; };
    const SessionResult result = run_session(
        node,
        {store_step("isolated", 1024), store_step("isolated", 2048), store_step("isolated", 4096)},
        kPolicy, kJudge, hooks, document);
    EXPECT_TRUE(result.interrupted);
    EXPECT_EQ(saved.bursts.size(), 2u);
    EXPECT_THAT(saved.provenance.warnings.back(), HasSubstr("interrupted"));
}

TEST(Session, EachPhaseIsAnnouncedWithALimitAndSavedAtItsEnd) {
    FakeNode node;
    Measurements document = empty_document(node);
    std::vector<std::string> phases;
    std::vector<std::size_t> saves;
    SessionHooks hooks;
    hooks.save_every_ns = 1e18;
    hooks.enter = [&](const std::string& phase, double limit_ns) {
        phases.push_back(phase);
        EXPECT_GT(limit_ns, 1e9);
    };
    hooks.save = [&](const Measurements& partial) { saves.push_back(partial.bursts.size()); };
    run_session(
        node, {store_step("isolated", 1024), store_step("isolated", 2048), store_step("gap2", 512)},
        kPolicy, kJudge, hooks, document);
    EXPECT_EQ(phases, (std::vector<std::string>{"isolated", "isolated", "gap2"}));
    EXPECT_EQ(saves, (std::vector<std::size_t>{2, 3}));
}

TEST(Session, ARateAboveTheLineIsAnAccountingError) {
    FakeNode node;
    node.issue_per_byte = 0.0001;
    Measurements document = empty_document(node);
    run_session(node, {store_step("isolated", 1 << 20), store_step("isolated", 1024)}, kPolicy,
                kJudge, {}, document);
    ASSERT_EQ(document.provenance.warnings.size(), 1u);
    EXPECT_THAT(document.provenance.warnings[0], HasSubstr("accounting error"));
}

// ---- the whole command on the fake ------------------------------------------------------------

struct Command {
    TemporaryDirectory directory;
    ProbeOptions options;
    std::shared_ptr<std::pair<int, int>> used = std::make_shared<std::pair<int, int>>();

    Command() {
        options.output = directory.file("m.json");
        options.axes.bytes = {1024, 4096};
        options.axes.sms = {2, 8};
        options.axes.warps = {4};
        options.axes.gaps = {0, 4000};
        options.samples = 3;
        options.filters = {"section=isolated", "section=rates"};
    }

    int run(const std::function<void(FakeNode&)>& change = [](FakeNode&) {}) {
        int ends[2];
        EXPECT_EQ(pipe(ends), 0);
        Heartbeat heartbeat(ends[1]);
        testing::internal::CaptureStdout();
        testing::internal::CaptureStderr();
        const auto close_all = [&] {
            close(ends[0]);
            close(ends[1]);
            out = testing::internal::GetCapturedStdout();
            err = testing::internal::GetCapturedStderr();
        };
        int code = 0;
        try {
            code = run_probe(
                options,
                [&](const NodeOptions&) {
                    auto node = std::make_unique<FakeNode>();
                    change(*node);
                    return node;
                },
                heartbeat);
        } catch (...) {
            close_all();
            throw;
        }
        close_all();
        return code;
    }
    std::string out, err;
};

TEST(ProbeCommand, WritesADocumentThatReadsBack) {
    Command command;
    command.options.argv = {"xstage", "probe"};
    command.options.git_commit = "abc";
    EXPECT_EQ(command.run(), 0);
    const Measurements document = read_measurements(command.options.output);
    EXPECT_EQ(document.provenance.node, "fake");
    EXPECT_EQ(document.provenance.git_commit, "abc");
    EXPECT_EQ(document.provenance.gpus[1].uuid, "GPU-1");
    EXPECT_EQ(document.bursts.size(), 2u * 2 * 2 * 2);  // path, target, SMs, bytes
    EXPECT_FALSE(document.rates.empty());
    EXPECT_TRUE(document.visible.empty()) << "filtered out";
    EXPECT_THAT(command.err, HasSubstr("0 of "));
    EXPECT_THAT(command.out, HasSubstr("copy_engine"));
}

TEST(ProbeCommand, TheFirstWorkingPairIsUsedAndTheBrokenOneNamed) {
    Command command;
    EXPECT_EQ(command.run([](FakeNode& node) {
        node.pairs = {{0, 1, false, "7 of 9 stored words did not arrive"}, {1, 0, true, ""}};
    }),
              0);
    EXPECT_THAT(command.err, HasSubstr("GPU 0 to GPU 1 failed its self-test: 7 of 9"));
    EXPECT_THAT(read_measurements(command.options.output).provenance.warnings.at(0),
                HasSubstr("GPU 0 to GPU 1"));
}

TEST(ProbeCommand, WithoutAWorkingPairTheMachineCannotDoIt) {
    Command command;
    const std::string message = xstage::test::error_of(ErrorKind::kUnsupported, [&] {
        command.run([](FakeNode& node) {
            node.pairs = {{0, 1, false, "no peer access"}, {1, 0, false, "hung"}};
        });
    });
    EXPECT_THAT(message, HasSubstr("GPU 1 to GPU 0 failed its self-test: hung"));
}

TEST(ProbeCommand, ManyMarkedSamplesFailTheRun) {
    Command command;
    // The reference is taken from the first 20 samples; later every tenth has another clock.
    EXPECT_EQ(command.run([](FakeNode& node) {
        node.clock_of = [](int sample) { return sample > 20 && sample % 10 == 0 ? 1.5 : 2.0; };
    }),
              1);
    EXPECT_THAT(command.err, HasSubstr("marked"));
}

TEST(ProbeCommand, ASlowerNodeFailsTheComparison) {
    Command command;
    EXPECT_EQ(command.run(), 0);
    command.options.base = command.directory.file("base.json");
    std::rename(command.options.output.c_str(), command.options.base.c_str());
    EXPECT_EQ(command.run(), 0);
    EXPECT_THAT(command.out, HasSubstr("no regression"));
    EXPECT_EQ(command.run([](FakeNode& node) { node.issue_per_byte *= 1.3; }), 1);
    EXPECT_THAT(command.out, HasSubstr("SLOWER"));
}

TEST(ProbeCommand, AnUnwritablePlaceIsFoundBeforeMeasuring) {
    Command command;
    command.options.output = command.directory.file("no/such/directory/m.json");
    bool measured = false;
    xstage::test::bad_input([&] {
        command.run([&](FakeNode& node) {
            node.before_store = [&](const StoreConfig& config) {
                measured |= config.bytes == 1024;
            };
        });
    });
    EXPECT_FALSE(measured);
}

TEST(ProbeCommand, AnEmptyPlanIsAWrongCommandLine) {
    Command command;
    command.options.filters = {"path=st16,section=litmus"};
    EXPECT_THAT(xstage::test::bad_input([&] { command.run(); }), HasSubstr("nothing to measure"));
}

TEST(Progress, TimeLeftFollowsThePace) {
    EXPECT_DOUBLE_EQ(Progress::left_ns(0, 100e9, 5e9), 100e9) << "no pace yet";
    EXPECT_DOUBLE_EQ(Progress::left_ns(50e9, 100e9, 25e9), 25e9);
    EXPECT_DOUBLE_EQ(Progress::left_ns(120e9, 100e9, 25e9), 0);
    EXPECT_EQ(Progress::duration(11.2e9), "12 s");
    EXPECT_EQ(Progress::duration(125e9), "2 min 05 s");
}

}  // namespace
}  // namespace xstage::probe
