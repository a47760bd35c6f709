#pragma once
/// All that a program needs: `#include <parley/parley.hpp>`, link `parley::parley`.
///
///     parley::task<> rank_main(parley::rank& self) {
///       auto transfer = self.declare(parley::paired_transfer{…});
///       …
///     }
///     int main(int argc, char** argv) { return parley::run(argc, argv, rank_main); }
///
/// Where to look next: ops/paired_transfer.hpp, ops/pipeline.hpp and ops/leader_worker.hpp for the ops, ops/config.hpp for configs of one's own,
/// ops/tunable_op.hpp for kernels of one's own, ops/run.hpp for other people's loops, runtime/work.hpp for programs without coroutines,
/// runtime/actor.hpp for actors of one's own. A `decision` names the `config` that runs, be it a winner or still the default.
#include <parley/ops/config.hpp>
#include <parley/ops/contextual.hpp>
#include <parley/ops/group_config.hpp>
#include <parley/ops/halo.hpp>
#include <parley/ops/hierarchical.hpp>
#include <parley/ops/leader_worker.hpp>
#include <parley/ops/p2p.hpp>
#include <parley/ops/paired_transfer.hpp>
#include <parley/ops/pipeline.hpp>
#include <parley/ops/rank.hpp>
#include <parley/ops/ring_attention.hpp>
#include <parley/ops/run.hpp>
#include <parley/ops/symmetric.hpp>
#include <parley/ops/training_pipeline.hpp>
#include <parley/ops/tunable_op.hpp>
#include <parley/ops/tuned_stage.hpp>
#include <parley/runtime/actor.hpp>
#include <parley/runtime/compute.hpp>
#include <parley/runtime/dataflow.hpp>
#include <parley/runtime/error.hpp>
#include <parley/runtime/identifiers.hpp>
#include <parley/runtime/run.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/runtime/task.hpp>
#include <parley/runtime/when.hpp>
#include <parley/runtime/work.hpp>

namespace parley {

using namespace runtime::literals;
namespace literals = runtime::literals;
using ops::agreement;
using ops::attempt;
using ops::attention;
using ops::attention_shape;
using ops::batch_options;
using ops::bf16;
using ops::by_piece;
using ops::chain;
using ops::chunked;
using ops::collective;
using ops::communicator;
using ops::communicator_source;
using ops::config_ptr;
using ops::contextual;
using ops::contextual_op;
using ops::decision;
using ops::direct;
using ops::get;
using ops::gpipe;
using ops::grid_field;
using ops::group_call;
using ops::group_config;
using ops::group_config_ptr;
using ops::grouped;
using ops::groups_of;
using ops::halo;
using ops::halo_exchange;
using ops::halo_plan;
using ops::halo_reach;
using ops::hierarchical;
using ops::hierarchy;
using ops::index_field;
using ops::interleaved;
using ops::job;
using ops::job_options;
using ops::kernel_outputs;
using ops::leader_worker;
using ops::linear_pipeline;
using ops::one_forward_one_backward;
using ops::one_shot;
using ops::p2p;
using ops::p2p_operation;
using ops::paired;
using ops::paired_config;
using ops::paired_transfer;
using ops::parse_schedule;
using ops::part_receiver;
using ops::part_sender;
using ops::pipeline;
using ops::pipeline_action;
using ops::pipeline_memory;
using ops::pipeline_report;
using ops::pipeline_schedule;
using ops::pipeline_stage;
using ops::pipeline_stages;
using ops::pipeline_work;
using ops::point_to_point;
using ops::put;
using ops::rank;
using ops::rank_group;
using ops::ring_attention;
using ops::role_op;
using ops::run;
using ops::star;
using ops::symmetric;
using ops::symmetric_call;
using ops::symmetric_config;
using ops::symmetric_config_ptr;
using ops::symmetric_op;
using ops::training;
using ops::training_pipeline;
using ops::training_work;
using ops::transfer;
using ops::tree;
using ops::tunable_context;
using ops::tunable_op;
using ops::tuned_stage;
using ops::tuned_stage_options;
using ops::tuned_stages;
using ops::two_shot;
using runtime::actor;
using runtime::address;
using runtime::compute;
using runtime::compute_options;
using runtime::compute_queue;
using runtime::dataflow;
using runtime::errc;
using runtime::error;
using runtime::f16;
using runtime::failure;
using runtime::flow_work;
using runtime::rank_id;
using runtime::reads;
using runtime::result;
using runtime::scope;
using runtime::sleep_for;
using runtime::sleep_until;
using runtime::spawn_actor;
using runtime::start;
using runtime::start_options;
using runtime::task;
using runtime::this_scope;
using runtime::time_ns;
using runtime::updates;
using runtime::when_all;
using runtime::when_any;
using runtime::with_dataflow;
using runtime::with_deadline;
using runtime::work;
using runtime::writes;
using runtime::yield;
using transports::bootstrap;
using tuning::kernel_key;

}  // namespace parley
