#pragma once
/// Halo exchange: every rank holds a block of a grid, or a part of a mesh, with a rim of cells that belong to its neighbours,
/// and fetches them; each pair of neighbours runs one config of several, the fastest, found out while the program runs.
///
///     halo rims(self, {.name = "u", .ranks = {2, 2}, .width = {1, 1}});   // a 2 x 2 grid of ranks
///     auto ghosts_of_u = rims.plan({grid_field(u, {rows, columns})});     // u has (rows + 2) * (columns + 2) elements
///     auto moving = ghosts_of_u.start(flow);                              // from now on what neighbours need is read
///     interior(u, next);                                                  // all that needs no ghosts
///     co_await moving;                                                    // the ghosts are here
///     boundary(u, next);
///
/// Among steps of the flow that name the field nothing else is awaited:
///
///     flow.compute({writes(u)}, [&] { fill(u); });                       // before it leaves
///     ghosts_of_u.start(flow);
///     flow.compute({reads(u), writes(next)}, [&] { step(u, next); });    // when its ghosts are here
///     co_await flow.join();
///
/// Ranks are numbered along the last dimension first. Dimensions count from the slowest, as in C arrays. Between `start` and
/// the end of its work ghosts are not read, and from then on they hold what the neighbours had when they started, if nobody
/// writes there before the exchange has ended. Several fields go in one message per neighbour. What lies in one piece in memory is
/// sent and received in place. What lies in a few long
/// ones, in host memory, is sent by the piece or packed, whichever the two neighbours find to be faster: `by_piece` moves each from its place
/// to its place, where both cut alike, all other configs move what is packed when its send begins. Either way it has to stay until the
/// exchange has ended, as what is sent in place has to. All the rest, short pieces or many, meshes, and on GPUs, is packed when the
/// earlier steps of the flow that write there, or between, have ended: within `start`, if none is under way. A later step that names what
/// an exchange brings ghosts into, or what lies between those that are packed, waits for them: what shall go on beside it does not name
/// them, like `interior` here.
///
/// On a GPU (`.memory`) kernels pack, in the order of a stream, and nothing waits on the host:
///
///     boundary(s, u, next);                                               // first what neighbours need
///     auto moving = ghosts_of_next.start(flow, s);
///     interior(others, u, next);                                          // beside the exchange
///
/// Meshes name their neighbours themselves: `halo_options::neighbours` and `index_field`, with lists of indices.
///
/// Failure and cancellation: those of the messages (p2p.hpp). Where an exchange has given one up, as it came too late say, the next one
/// would take it for its own: so there is none, on any rank, but `closed`, which says where and why, until all have joined again after a
/// restart; `peer_failed`, where it began with the death of a rank. `bad_argument` for fields that do not fit the declaration, and
/// for a neighbour that sends or expects another number of bytes: in host memory each plan's first exchange brings a message beside
/// the ghosts in which neighbours say both, so that either end hears of it, and which pieces they have; from then on `by_piece` may run,
/// unless one of them has others, as where rows are padded on one side only. Ghosts are then undefined, all else is untouched.
#include <parley/actors/edge/payload_pieces.hpp>
#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/runtime/dataflow/memory_pieces.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class neighbours;

/// Which blocks are neighbours.
enum class halo_reach : std::uint8_t {
  faces,    ///< those that share a face: 2, 4 or 6
  corners,  ///< also those that share an edge or a corner: 2, 8 or 26
};

struct halo_options {
  std::string name;
  std::vector<rank_id> ranks{};        ///< how many along each dimension, 1 to 3 of them; empty: a mesh
  std::vector<bool> periodic{};        ///< per dimension; empty: none is
  std::vector<std::uint64_t> width{};  ///< cells of the rim, per dimension; empty: 1 each
  halo_reach reach = halo_reach::faces;
  std::vector<rank_id> neighbours{};  ///< of a mesh: those of this rank; they name it in turn
  std::vector<config_ptr> configs{configs::direct(), configs::chunked(64 * 1024, 4), configs::by_piece()};
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where its fields lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
  /// What a neighbour is sent goes by the piece only where each has at least so many bytes, and there are no more than
  /// `most_pieces`: a message for each costs more than packing short ones (docs/performance.md).
  std::uint64_t by_piece_from = 2048;
  static constexpr std::size_t most_pieces = 64;
};

/// One field on this rank. Addresses are those of the whole block, rim included.
struct halo_field {
  std::span<std::byte> memory;
  std::uint64_t element_bytes = 0;
  std::vector<std::uint64_t> cells{};  ///< of the block without its rim, per dimension
  /// Elements from one index to the next, per dimension, the last one's is 1; empty: no padding.
  std::vector<std::uint64_t> strides{};
  /// Of a mesh, per neighbour in the order of the declaration: the elements to send it, and those that come from it.
  std::vector<std::vector<std::uint64_t>> send{};
  std::vector<std::vector<std::uint64_t>> receive{};
  std::uint16_t type = 0;  ///< of its elements (`element_type_of`); 0: any
};

/// Of a grid. Without `strides` the cells and their rim fill all of `memory`.
template <writable_buffer B>
halo_field grid_field(B&& memory, const std::vector<std::uint64_t>& cells,
                      const std::vector<std::uint64_t>& strides = {}) {
  return {.memory = std::as_writable_bytes(std::span(memory)),
          .element_bytes = sizeof(std::ranges::range_value_t<B>),
          .cells = cells,
          .strides = strides,
          .type = type_of_elements<B>()};
}
/// Of a mesh.
template <writable_buffer B>
halo_field index_field(B&& memory, const std::vector<std::vector<std::uint64_t>>& send,
                       const std::vector<std::vector<std::uint64_t>>& receive) {
  return {.memory = std::as_writable_bytes(std::span(memory)),
          .element_bytes = sizeof(std::ranges::range_value_t<B>),
          .send = send,
          .receive = receive,
          .type = type_of_elements<B>()};
}

/// Fields that are exchanged together, and the buffers for that. In host memory the exchanges of one flow follow each other by themselves,
/// those of several plans on one field, too, as far as cells of one lie between those of another: all ranks start them in the same order.
class [[nodiscard]] halo_plan {
 public:
  /// Of nothing, until one is assigned to it.
  halo_plan();
  halo_plan(halo_plan&& other) noexcept;
  halo_plan& operator=(halo_plan&& other) noexcept;
  halo_plan(const halo_plan&) = delete;
  halo_plan& operator=(const halo_plan&) = delete;
  ~halo_plan();
  /// Starts to move what neighbours need, in the order of the flow: after what earlier steps write there. The work ends when all ghosts are
  /// in their places. Throws `bad_argument` where the last exchange is under way, in another flow or on a device, as does `open` in another flow.
  ///
  /// Fields on a device need a `stream`: what neighbours need is read after all that it has now, what it gets from here on sees the
  /// ghosts, and the host waits for nothing. The work then ends when the messages have ended; await it before this plan is
  /// started again, and before kernels overwrite what was sent.
  runtime::flow_work start(runtime::dataflow& flow, runtime::device_stream stream = nullptr);
  /// Ghosts are not read any more, on a device by nothing that `stream` gets from here on: neighbours may bring those of the next
  /// `start`, in the same flow, as soon as they have them. `start` does this itself, later than it could be done.
  void open(runtime::dataflow& flow, runtime::device_stream stream = nullptr);
  /// One exchange alone, for who computes nothing meanwhile: it ends when all ghosts are in their places. The plan stays until then.
  runtime::task<> exchange(runtime::device_stream stream = nullptr);
  /// How many bytes this rank sends in one exchange, and how many of them are packed first, unless they go by the piece.
  std::uint64_t sent_bytes() const noexcept;
  std::uint64_t packed_bytes() const noexcept;
  /// How many bytes have been packed so far, in all exchanges, which shows what goes by the piece.
  std::uint64_t packed_so_far_bytes() const noexcept;

 private:
  friend class halo;
  struct link;
  struct state;
  class packing;
  class unpacking;
  void check_stream(runtime::device_stream stream) const;
  void check_latest(const runtime::dataflow& flow) const;
  void begin_anew_if_failed(runtime::dataflow& flow, std::vector<runtime::flow_work>& all);
  void pack(runtime::dataflow& flow, std::vector<runtime::flow_work>& all);
  void compare(runtime::dataflow& flow, std::vector<runtime::flow_work>& all);
  boost::intrusive_ptr<state> state_;
  runtime::flow_work receiving_;  // from `open` to `start`
  const runtime::dataflow* receiving_flow_ = nullptr;
  runtime::flow_work latest_;  // exchange, and its flow
  const runtime::dataflow* latest_flow_ = nullptr;
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class halo {
 public:
  /// Of no op: this rank is idle in it.
  halo() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  halo(rank& self, const halo_options& op);
  /// Throws `bad_argument` for fields that do not fit. Registers its buffers where configs need that.
  halo_plan plan(const std::vector<halo_field>& fields) const;
  /// Of a rank that is outside of the grid, or has no neighbours: its exchanges end at once.
  bool idle() const noexcept { return directions_.empty(); }
  /// This rank's place along each dimension; none outside of the grid.
  const std::vector<rank_id>& place() const noexcept { return place_; }
  /// The neighbours of this rank, as many as messages go out.
  std::size_t neighbours() const noexcept { return directions_.size(); }
  agreement to(rank_id peer) const { return messages_.to(peer); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return messages_.decision(bytes, peer); }
  /// After `peer_restarted`, on each of the op's other ranks (of a mesh: of the world), with no exchange under way: all begin anew.
  /// False when no rank has restarted.
  bool rejoin();

 private:
  struct direction {
    rank_id peer;
    std::array<int, 3> to;  // -1, 0 or 1 per dimension; of a mesh: all 0
    std::uint32_t tag_out;
    std::uint32_t tag_in;
  };
  runtime::memory_pieces region(const halo_field& f, std::size_t neighbour, bool ghosts) const;
  runtime::memory_pieces box(const halo_field& f, const std::array<int, 3>& to, bool ghosts) const;
  void check(const halo_field& f, std::size_t number) const;
  std::unique_ptr<actors::payload_pieces> few_and_long(const std::vector<runtime::memory_pieces>& regions, rank_id peer,
                                                       std::span<std::byte> packed) const;
  halo_options op_;
  rank_id self_ = 0;
  std::string title_;
  std::vector<rank_id> place_;
  std::vector<direction> directions_;
  p2p messages_;
  ops::neighbours* around_ = nullptr;  // the rank's
};

/// The messages that rank `self` exchanges, or `bad_argument`; the same on all ranks but for the neighbours of a mesh.
runtime::result<p2p_options> halo_messages(const halo_options& op, rank_id self, rank_id world_size);

}  // namespace parley::ops
