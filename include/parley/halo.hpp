#pragma once
/// Halo exchange. Every rank holds a block of a grid, or a part of a mesh, with a rim of cells (ghosts) that belong to its neighbours. In
/// an exchange every rank receives its ghosts from its neighbours. Each pair of neighbours finds the fastest of its configs while the
/// program runs, and then runs that one.
///
///     halo rims(self, {.name = "u", .ranks = {2, 2}, .width = {1, 1}});   // a 2 x 2 grid of ranks
///     auto ghosts_of_u = rims.plan({grid_field(u, {rows, columns})});     // u has (rows + 2) * (columns + 2) elements
///     auto moving = ghosts_of_u.start(flow);                              // from now on the cells that neighbours need are read
///     interior(u, next);                                                  // the cells that need no ghosts
///     co_await moving;                                                    // the ghosts have arrived
///     boundary(u, next);
///
/// If all steps of the flow name the field, the program awaits nothing else:
///
///     flow.compute({writes(u)}, [&] { fill(u); });                       // before it is sent
///     ghosts_of_u.start(flow);
///     flow.compute({reads(u), writes(next)}, [&] { step(u, next); });    // when its ghosts have arrived
///     co_await flow.join();
///
/// Ranks are numbered along the last dimension first. Dimensions count from the slowest, as in C arrays. The program must not read ghosts
/// between `start` and the end of its work. After that the ghosts hold the cells as the neighbours had them when they called `start`,
/// unless a neighbour has written to those cells before the exchange ended.
///
/// One message for each neighbour carries all fields of the plan. The memory of the cells decides how they are sent:
/// - Cells that lie in one piece are sent and received in place.
/// - Cells in a few long pieces of host memory are sent by the piece or packed, in the way that the two neighbours find faster. `by_piece`
///   sends each piece from its place and receives it into its place, if the pieces of both neighbours have the same sizes. All other
///   configs send a copy that is packed when the send begins. In either case, as with cells sent in place, do not overwrite the cells
///   before the exchange has ended.
/// - All other cells (short or many pieces, meshes, cells on GPUs) are packed. In host memory they are packed once no earlier step of the
///   flow still writes to them or to the memory between them: within `start` if no such step is in progress.
///
/// A later step waits for the exchange if it names the ghosts that the exchange fills, or the memory between ghosts that are unpacked. To
/// run during the exchange, like `interior` here, a step must not name them.
///
/// On a GPU (`.memory`) kernels pack, in the order of a stream, and nothing waits on the host:
///
///     boundary(s, u, next);                                               // first the cells that neighbours need
///     auto moving = ghosts_of_next.start(flow, s);
///     interior(others, u, next);                                          // during the exchange
///
/// For a mesh the program names the neighbours, and the indices to send and receive: `halo_options::neighbours` and `index_field`.
///
/// Failure and cancellation: as for the messages (p2p.hpp). After a failed exchange the ghosts are undefined; all other memory is
/// untouched.
/// - If an exchange gives up a message, for example a late one, a later exchange could mistake that message for its own. So later exchanges
///   throw `closed` on all ranks, with the rank and the reason, until all ranks have rejoined after a restart. If the death of a rank was
///   the cause, they throw `peer_failed`.
/// - `bad_argument`: the fields do not fit the declaration, or a neighbour sends or expects another number of bytes.
///
/// In host memory the first exchange of a plan also sends each neighbour a message. It has the numbers of bytes that the rank sends and
/// expects, so that both ends notice a difference. The message also describes the sender's pieces. From then on `by_piece` may run, unless
/// the two ranks have different pieces, for example because rows are padded on one of them only.
#include <parley/dataflow.hpp>
#include <parley/halo_field.hpp>
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

/// The blocks that count as neighbours.
enum class halo_reach : std::uint8_t {
  faces,    ///< blocks that share a face: 2, 4 or 6
  corners,  ///< also blocks that share an edge or a corner: 2, 8 or 26
};

struct halo_options {
  std::string name;
  std::vector<rank_id> ranks{};        ///< number of ranks along each of 1 to 3 dimensions; empty: a mesh
  std::vector<bool> periodic{};        ///< per dimension; empty: none is
  std::vector<std::uint64_t> width{};  ///< width of the rim in cells, per dimension; empty: 1 each
  halo_reach reach = halo_reach::faces;
  std::vector<rank_id> neighbours{};  ///< for a mesh: this rank's neighbours; each of them must also name this rank
  std::vector<config_ptr> configs{configs::direct(), configs::chunked(64 * 1024, 4), configs::by_piece()};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where the fields lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
  /// `by_piece` runs only if each piece for a neighbour has at least this many bytes, and there are at most `most_pieces`: if the pieces
  /// are short, a message for each piece costs more than packing (docs/performance.md).
  std::uint64_t by_piece_from = 2048;
  static constexpr std::size_t most_pieces = 64;
};

/// Fields that are exchanged together, with the buffers for the exchange. In host memory the flow runs a plan's exchanges one after the
/// other. If cells of one plan lie between cells of another plan of the same field, the flow also runs the exchanges of these plans one
/// after the other.
///
/// All ranks start the same plans in the same order, with the fields of a plan in the same order: messages of equal size from two plans
/// cannot be told apart. If one rank makes a plan again, its neighbours must also make theirs again. A plan belongs to the memory that it
/// was made for: `std::swap(u, next)` swaps the memory, so also swap the plans.
class [[nodiscard]] halo_plan {
 public:
  /// An empty plan. Every call throws `bad_argument` until another plan is assigned to it.
  halo_plan();
  halo_plan(halo_plan&& other) noexcept;
  halo_plan& operator=(halo_plan&& other) noexcept;
  halo_plan(const halo_plan&) = delete;
  halo_plan& operator=(const halo_plan&) = delete;
  ~halo_plan();
  /// Starts an exchange in the order of the flow: cells are sent once the earlier steps that write them have ended. The work ends when all
  /// ghosts are in their places. Throws `bad_argument` if the plan's last exchange is still in progress in another flow (on a device: in
  /// any flow), or if the plan was opened in another flow.
  ///
  /// Fields on a device need a `stream`. The cells to send are read after all work that is in the stream now. Work that is enqueued later
  /// sees the ghosts. The host waits for nothing. The returned work then ends when the messages have ended. Await it before you start this
  /// plan again, and before kernels overwrite the cells that are sent.
  runtime::flow_work start(runtime::dataflow& flow, runtime::device_stream stream = nullptr);
  /// Promises that this rank no longer reads its ghosts; on a device, that no work enqueued into `stream` from now on reads them. The
  /// neighbours may then send the ghosts of the next `start`, in the same flow, once they have them. Without `open`, `start` makes this
  /// promise, which is later. Throws `bad_argument` if the plan is open already, or, in host memory, if its last exchange is still in
  /// progress in another flow.
  void open(runtime::dataflow& flow, runtime::device_stream stream = nullptr);
  /// Makes one exchange, for programs that compute nothing during the exchange. Ends when all ghosts are in their places. Keep the plan
  /// until then.
  runtime::task<> exchange(runtime::device_stream stream = nullptr);
  /// The bytes that this rank sends in one exchange, and the number of these bytes that are packed unless they are sent by the piece.
  std::uint64_t sent_bytes() const noexcept;
  std::uint64_t packed_bytes() const noexcept;
  /// The bytes packed so far in all exchanges; cells sent by the piece are not among them.
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
  runtime::flow_work latest_;  // the latest exchange, and its flow
  const runtime::dataflow* latest_flow_ = nullptr;
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class halo {
 public:
  /// A handle of no op: this rank counts as idle.
  halo() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  halo(rank& self, const halo_options& op);
  /// Makes a plan. Throws `bad_argument` for fields that do not fit the op. Registers its buffers if configs need that.
  halo_plan plan(const std::vector<halo_field>& fields) const;
  /// True if this rank is outside the grid, or has no neighbours (the only block of a grid that is not periodic). Then this rank's
  /// exchanges end at once.
  bool idle() const noexcept { return directions_.empty(); }
  /// This rank's place along each dimension; empty outside the grid.
  const std::vector<rank_id>& place() const noexcept { return place_; }
  /// The number of messages that this rank sends in one exchange; a rank that is a neighbour in two directions counts twice.
  std::size_t neighbours() const noexcept { return directions_.size(); }
  /// The agreements with a neighbour, for the messages to it and for the messages from it. `bytes` is the size of one whole message, with
  /// all fields of a plan. `decision` returns the decision for the messages to the neighbour.
  agreement to(rank_id peer) const { return messages_.to(peer); }
  agreement from(rank_id peer) const { return messages_.from(peer); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return messages_.decision(bytes, peer); }
  /// Call it after `peer_restarted`, on each of the op's other ranks (for a mesh: of the world), while no exchange is in progress. All
  /// ranks then begin a new generation of exchanges. Returns false if no rank has restarted.
  bool rejoin();

 private:
  struct direction {
    rank_id peer;
    std::array<int, 3> to;  // -1, 0 or 1 per dimension; all 0 for a mesh
    std::uint32_t tag_out;
    std::uint32_t tag_in;
  };
  runtime::memory_pieces region(const halo_field& f, std::size_t neighbour, bool ghosts) const;
  void check(const halo_field& f, std::size_t number) const;
  void check_apart(const std::vector<halo_field>& fields, const std::vector<halo_plan::link>& links) const;
  std::unique_ptr<actors::payload_pieces> few_and_long(const std::vector<runtime::memory_pieces>& regions, rank_id peer,
                                                       std::span<std::byte> packed) const;
  halo_options op_;
  rank_id self_ = 0;
  std::string title_;
  std::vector<rank_id> place_;
  std::vector<direction> directions_;
  p2p messages_;
  ops::neighbours* around_ = nullptr;  // owned by the rank
};

}  // namespace parley::ops
