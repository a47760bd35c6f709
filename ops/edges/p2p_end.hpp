#pragma once
/// A batch op on a rank that has a part in it. The handle (p2p.hpp) and the ops that are made of messages call it. Internal to ops.
#include <parley/actors/services.hpp>
#include <parley/dataflow.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/edges/self_edge.hpp>
#include <parley/p2p.hpp>
#include <parley/runtime/dataflow/flow_step.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace parley::ops {

class p2p_end final : public op_end {
 public:
  p2p_end(transfer pairs, const actors::services& s, const p2p_options& op)
      : op_end(kind::batch), name_(op.name), pairs_(std::move(pairs)),
        memory_(op.memory == nullptr ? runtime::host_memory() : *op.memory),
        to_itself_(s, memory_, op.name, op.timeout.count()), services_(s), self_(s.net.rank()) {}
  /// An empty declaration: those of its edges say everything.
  const actors::op_declaration& declaration() const noexcept override;
  bool ends_with(rank_id) const noexcept override { return false; }
  void fail(const runtime::error&) noexcept override {}

  /// Starts the messages of a batch. If the batch has a stream, its receives are expected from here on (`memory_space::expect`).
  runtime::flow_work start(runtime::dataflow& flow, std::span<const p2p_operation> batch, const batch_options& o);
  /// Throws `bad_argument` if one of the op's own configs calls it, or a child process that fork() made.
  void check_caller() const { runtime::check_call(services_.ex, {"op", name_}); }
  runtime::memory_space& memory() const noexcept { return memory_; }
  std::uint64_t generation_with(rank_id peer) const { return peer == self_ ? 0 : pairs_.generation_with(peer); }
  transfer& pairs() noexcept { return pairs_; }
  const self_edge& to_itself() const noexcept { return to_itself_; }
  void list_waiting(runtime::waiting_list& all) override { to_itself_.list_waiting(all); }
  /// The number of pairs of peer and tag that have state here. State of tags that are no longer used is dropped.
  std::size_t known_tags() const noexcept { return sends_.size() + receives_.size() + to_itself_.known_tags(); }
  /// A message of a step that has not ended.
  struct open_message : runtime::list_hook {
    const p2p_operation* operation = nullptr;
    std::uint64_t number = 0;  // among the messages of its peer, tag and kind
    const runtime::flow_step* step = nullptr;
    const runtime::dataflow* flow = nullptr;
  };
  void note_open_send(open_message& m) noexcept { open_sends_.push_back(m); }
  void note_open_to_itself(open_message& m) noexcept { open_to_itself_.push_back(m); }
  /// True if a receive from `source` that is posted now may wait for the end of `sent` without a deadlock.
  bool may_wait_for(const open_message& sent, rank_id source) const;
  /// True if `earlier` waits, perhaps through other steps, for a send that the receive being posted must not wait for.
  bool is_held_up(const runtime::flow_step& earlier);
  /// Counts bytes that were received into a temporary buffer and copied from there.
  void note_copied(std::uint64_t bytes) noexcept { copied_bytes_ += bytes; }
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }

 private:
  struct line {
    runtime::begin_sequence order;
    std::uint64_t posted = 0;  // messages so far
  };
  class sequences {  // by peer and tag
   public:
    line& operator[](std::uint64_t key) {
      if (latest_ == nullptr || latest_->first != key) latest_ = &find_or_make(key);
      return latest_->second;
    }
    std::size_t size() const noexcept { return all_.size(); }
    struct counted {
      std::size_t known = 0;   // peers with a message of that tag
      std::size_t posted = 0;  // of those, peers with a posted message of that number
    };
    /// Counts among `peers`.
    counted count(const std::vector<declared_edge*>& peers, std::uint32_t tag, std::uint64_t number) const;
    const line* find(std::uint64_t key) const {
      const auto known = all_.find(key);
      return known == all_.end() ? nullptr : &known->second;
    }

   private:
    using map = std::unordered_map<std::uint64_t, line>;
    map::value_type& find_or_make(std::uint64_t key);
    map all_;
    map::value_type* latest_ = nullptr;
    std::size_t sweep_at_ = 64;  // at this size, tags that are no longer used are dropped
  };
  void order_behind(const batch_options& o, std::span<p2p_operation> batch);
  enum class with : std::uint8_t { peer, itself };
  with check_pair(const p2p_operation& o);
  void check_circles(const runtime::dataflow& flow, std::span<const p2p_operation> batch);
  enum class matching : std::uint8_t { posted, awaited, unknown };
  matching receive_for(const open_message& sent) const;
  matching receive_for(const open_message& sent, rank_id from) const;
  bool may_close_circle(const runtime::dataflow& flow, std::span<const p2p_operation> batch);
  void find_held_up();
  enum class ways : std::uint8_t { all, messages };
  void add_held_up_by(const runtime::flow_step& sent, ways through);
  runtime::flow_step_ptr step_for(const runtime::dataflow& flow, const p2p_operation& o, std::uint64_t number);
  bool leaves_at_once(const runtime::dataflow& flow, const p2p_operation& o, std::uint64_t batch,
                      const runtime::buffer_access& use, const runtime::step_options& how);
  static std::uint64_t key_of(rank_id peer, std::uint32_t tag) noexcept { return (std::uint64_t{peer} << 32U) | tag; }
  static rank_id peer_of(std::uint64_t key) noexcept { return static_cast<rank_id>(key >> 32U); }
  static std::uint32_t tag_of(std::uint64_t key) noexcept { return static_cast<std::uint32_t>(key); }
  line& line_of(const p2p_operation& o);
  std::string name_;
  transfer pairs_;
  runtime::memory_space& memory_;
  self_edge to_itself_;
  const actors::services& services_;
  rank_id self_;
  sequences sends_;
  sequences receives_;
  runtime::intrusive_list<open_message> open_sends_;      // except sends with posted receives
  runtime::intrusive_list<open_message> open_to_itself_;  // in posting order, until they meet
  // For the receive that is being posted; filled when it first asks.
  std::unordered_set<const runtime::flow_step*> held_up_;
  bool has_found_held_up_ = false;
  rank_id posted_from_ = 0;
  std::uint64_t batches_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

}  // namespace parley::ops
