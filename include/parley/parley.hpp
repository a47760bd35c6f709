#pragma once
/// All that a program needs: `#include <parley/parley.hpp>`, link `parley::parley`.
///
///     parley::task<> rank_main(parley::rank& self) {
///       parley::transfer activations(self, {.name = "activations", …});
///       …
///     }
///     int main(int argc, char** argv) { return parley::run(argc, argv, rank_main); }
///
/// Further headers: parley/transfer.hpp, parley/pipeline.hpp and parley/collective.hpp for the ops, parley/config.hpp for your own
/// configs, parley/tunable_op.hpp for your own kernels, parley/run.hpp for engines that own their loop, parley/work.hpp for programs
/// without coroutines, parley/actor.hpp for your own actors. A `decision` names the `config` that runs: the winner, or still the default.
#include <parley/actor.hpp>
#include <parley/collective.hpp>
#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/dataflow.hpp>
#include <parley/error.hpp>
#include <parley/gemm.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchy.hpp>
#include <parley/identifiers.hpp>
#include <parley/offline_tuning.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/rank.hpp>
#include <parley/ring_attention.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_op.hpp>
#include <parley/tuned_stage.hpp>
#include <parley/when.hpp>
#include <parley/work.hpp>

namespace parley {

using namespace runtime::literals;
namespace literals = runtime::literals;
using ops::agreement;
using ops::attempt;
using ops::attention_shape;
using ops::batch_options;
using ops::bf16;
using ops::collective;
using ops::collective_call_options;
using ops::collective_kind;
using ops::collective_options;
using ops::communicator;
using ops::communicator_source;
using ops::config_ptr;
using ops::contextual;
using ops::contextual_options;
using ops::decision;
using ops::gemm;
using ops::gemm_call;
using ops::gpipe;
using ops::grid_field;
using ops::group_call;
using ops::group_config;
using ops::group_config_ptr;
using ops::grouped;
using ops::groups_of;
using ops::halo;
using ops::halo_options;
using ops::halo_plan;
using ops::halo_reach;
using ops::hierarchy;
using ops::hierarchy_options;
using ops::index_field;
using ops::interleaved;
using ops::job;
using ops::job_options;
using ops::kernel_outputs;
using ops::matrix_order;
using ops::one_forward_one_backward;
using ops::p2p;
using ops::p2p_operation;
using ops::p2p_options;
using ops::paired;
using ops::paired_config;
using ops::parse_schedule;
using ops::part_receiver;
using ops::part_sender;
using ops::pipeline;
using ops::pipeline_action;
using ops::pipeline_memory;
using ops::pipeline_options;
using ops::pipeline_report;
using ops::pipeline_schedule;
using ops::pipeline_stage;
using ops::pipeline_stages;
using ops::pipeline_work;
using ops::rank;
using ops::ring_attention;
using ops::ring_attention_options;
using ops::role;
using ops::role_op;
using ops::run;
using ops::symmetric;
using ops::symmetric_call;
using ops::symmetric_config;
using ops::symmetric_config_ptr;
using ops::symmetric_options;
using ops::text_of;
using ops::training_pipeline;
using ops::training_pipeline_options;
using ops::training_work;
using ops::transfer;
using ops::transfer_options;
using ops::tunable_context;
using ops::tunable_op;
using ops::tune_in_file;
using ops::tuned_stage;
using ops::tuned_stage_options;
using ops::tuned_stages;
using runtime::actor;
using runtime::address;
using runtime::awaited;
using runtime::compute;
using runtime::compute_options;
using runtime::compute_queue;
using runtime::dataflow;
using runtime::errc;
using runtime::error;
using runtime::f16;
using runtime::failure;
using runtime::flow_work;
using runtime::no_timeout;
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
