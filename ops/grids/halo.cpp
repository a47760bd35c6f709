#include <parley/halo.hpp>

#include <parley/actors/edge/payload_pieces.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/edges/message_options.hpp>
#include <parley/rank.hpp>
#include <parley/tuning/payload_check.hpp>

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <numeric>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::flow_work;
using runtime::memory_pieces;

struct halo_plan::link {
  rank_id peer = 0;
  std::uint32_t tag_out = 0;
  std::uint32_t tag_in = 0;
  std::vector<runtime::memory_pieces> out;  // one per field
  std::vector<runtime::memory_pieces> in;
  std::unique_ptr<runtime::memory_space::block> packed_out;  // null where the region is sent in place
  std::shared_ptr<runtime::memory_space::block> packed_in;
  actors::registered_memory registered_out{};
  actors::registered_memory registered_in{};
  // For regions of a few long pieces: the call packs and unpacks them, unless its config sends by the piece.
  std::unique_ptr<actors::payload_pieces> pieces_out{};
  std::unique_ptr<actors::payload_pieces> pieces_in{};
  bool has_come = false;           // the data has arrived in host memory, and is not unpacked yet
  std::uint64_t packed_bytes = 0;  // by `start`, so far
  term_comparison terms{};         // bytes sent, bytes expected, and hashes of the pieces
  std::span<std::byte> sent() noexcept;
  std::span<std::byte> received() noexcept;
};

// The part of a plan that exchanges in flight need. It stays in place when the plan is moved.
struct halo_plan::state final : p2p_hooks {
  std::string title;
  rank_id self = 0;
  p2p messages;
  runtime::memory_space* memory = nullptr;
  std::vector<link> links;
  neighbours* around = nullptr;
  std::uint16_t type = 0;  // of the elements of all fields together
  // The buffers that the steps for packing and unpacking on the host name (empty without such a step). `afresh`: the memory of all ghosts,
  // for an exchange that follows a failed one.
  std::vector<runtime::buffer_access> packs;
  std::vector<runtime::buffer_access> unpacks;
  std::vector<runtime::buffer_access> afresh;
  void name_what_is_packed();
  void name_what_is_unpacked();
  link& link_of(const p2p_operation& o) noexcept;
  p2p_operation receive_of(link& l);
  p2p_operation send_of(link& l);
  void after_receive(const p2p_operation& o, std::uint64_t came) override;
  void on_given_up(const p2p_operation& o, const runtime::error& why) noexcept override;
  void on_left_out(const p2p_operation& o, const runtime::error& why) noexcept override;
  void check(link& l, std::uint64_t came) const;
  void check_said(link& l, std::span<const std::uint64_t> theirs) const;
  void hear_of_pieces(link& l, std::span<const std::uint64_t> theirs) const noexcept;
  void pack(link& l, runtime::device_stream stream) const;
  void unpack(link& l, runtime::device_stream stream) const;
};

halo_plan::halo_plan() = default;
halo_plan::halo_plan(halo_plan&& other) noexcept = default;
halo_plan& halo_plan::operator=(halo_plan&& other) noexcept = default;
halo_plan::~halo_plan() = default;
bool halo::rejoin() { return ops::rejoin(messages_, around_); }

// ---- the declaration --------------------------------------------------------------------------------------------------

namespace {

using place = std::array<int, 3>;

rank_id blocks_of(const halo_options& op) {
  return std::accumulate(op.ranks.begin(), op.ranks.end(), rank_id{1}, std::multiplies<>());
}

std::vector<rank_id> place_of(const halo_options& op, rank_id r) {
  std::vector<rank_id> at(op.ranks.size());
  for (std::size_t d = at.size(); d-- > 0; r /= op.ranks[d]) at[d] = r % op.ranks[d];
  return at;
}

std::vector<place> directions_of(const halo_options& op) {
  std::vector<place> all;
  const std::size_t dimensions = op.ranks.size();
  std::size_t combinations = 1;
  for (std::size_t d = 0; d < dimensions; ++d) combinations *= 3;
  for (std::size_t code = 0; code < combinations; ++code) {
    place to{};
    int moved = 0;
    std::size_t rest = code;
    for (std::size_t d = dimensions; d-- > 0; rest /= 3) {
      to[d] = static_cast<int>(rest % 3) - 1;
      moved += to[d] != 0 ? 1 : 0;
    }
    if (moved == 1 || (moved > 1 && op.reach == halo_reach::corners)) all.push_back(to);
  }
  return all;
}

// The tag is the number of the direction in which data is sent, because two blocks may be neighbours in two directions.
std::uint32_t tag_of(const place& to) {
  return static_cast<std::uint32_t>((to[0] + 1) * 9 + (to[1] + 1) * 3 + to[2] + 1);
}

std::optional<rank_id> neighbour_of(const halo_options& op, const std::vector<rank_id>& at, const place& to) {
  rank_id r = 0;
  for (std::size_t d = 0; d < at.size(); ++d) {
    const auto count = static_cast<std::int64_t>(op.ranks[d]);
    std::int64_t there = std::int64_t{at[d]} + to[d];
    const bool wraps = !op.periodic.empty() && op.periodic[d];
    if ((there < 0 || there >= count) && !wraps) return std::nullopt;
    there = (there + count) % count;
    r = r * op.ranks[d] + static_cast<rank_id>(there);
  }
  return r;
}

}  // namespace

namespace {
// The terms of a grid, which all its ranks declare alike. A mesh declares only its shape, because its ranks have different neighbours.
std::vector<actors::declared_term> terms_of(const halo_options& op) {
  if (op.ranks.empty()) return {{"shape", "mesh"}};
  const auto in_words = [](const auto& all, const char* between) {
    std::string text;
    for (const auto each : all) text += (text.empty() ? "" : between) + std::to_string(each);
    return text;
  };
  std::string periodic;
  for (std::size_t d = 0; d < op.ranks.size(); ++d)
    periodic += (d == 0 ? "" : " ") + std::string(!op.periodic.empty() && op.periodic[d] ? "yes" : "no");
  const std::vector<std::uint64_t> ones(op.ranks.size(), 1);
  return {{"grid", in_words(op.ranks, "x")},
          {"periodic", periodic},
          {"width", in_words(op.width.empty() ? ones : op.width, " ")},
          {"reach", op.reach == halo_reach::corners ? "corners" : "faces"}};
}

/// The options of the op that carries the messages of rank `self`, or `bad_argument`. For a mesh these options differ between ranks.
runtime::result<p2p_options> halo_messages(const halo_options& op, rank_id self, rank_id world_size) {
  const std::string title = "op " + op.name;
  const auto wrong = [&](const std::string& what) { return error{errc::bad_argument, title + ": " + what}; };
  p2p_options messages = messages_of(op);
  messages.restart_group = named_or_first({}, op.ranks.empty() ? world_size : blocks_of(op));
  if (op.ranks.empty()) {  // a mesh
    for (const rank_id r : op.neighbours) {
      if (r >= world_size)
        return wrong("its neighbours name rank " + std::to_string(r) + ", which is outside the world of " +
                     std::to_string(world_size));
      if (std::count(op.neighbours.begin(), op.neighbours.end(), r) > 1)
        return wrong("its neighbours name rank " + std::to_string(r) + " twice");
      messages.edges.emplace_back(self, r);
      if (r != self) messages.edges.emplace_back(r, self);
    }
    if (messages.edges.empty()) messages.edges.emplace_back(self, self);
    return messages;
  }
  if (op.ranks.size() > 3) return wrong("a grid has 1 to 3 dimensions");
  if (!op.neighbours.empty()) return wrong("a grid determines its neighbours; leave the list `neighbours` empty");
  if (!op.periodic.empty() && op.periodic.size() != op.ranks.size())
    return wrong("`periodic` needs one entry per dimension");
  if (!op.width.empty() && op.width.size() != op.ranks.size()) return wrong("`width` needs one entry per dimension");
  const rank_id blocks = blocks_of(op);
  if (blocks == 0 || blocks > world_size)
    return wrong("its grid has " + std::to_string(blocks) + " blocks in a world of " + std::to_string(world_size) +
                 (blocks > world_size ? "; start a rank for each with `parley run -n " + std::to_string(blocks) +
                                            " PROGRAM`, or virtual ones with --sim " + std::to_string(blocks)
                                      : ""));
  if (self >= blocks) {
    messages.edges.emplace_back(0, 0);
    return messages;
  }
  const auto at = place_of(op, self);
  const auto add = [&](rank_id from, rank_id to) {
    const auto edge = std::pair(from, to);
    if (std::find(messages.edges.begin(), messages.edges.end(), edge) == messages.edges.end())
      messages.edges.push_back(edge);
  };
  for (const ops::place& to : directions_of(op)) {
    const auto peer = neighbour_of(op, at, to);
    if (!peer) continue;
    add(self, *peer);
    add(*peer, self);
  }
  if (messages.edges.empty()) messages.edges.emplace_back(self, self);
  return messages;
}

}  // namespace

halo::halo(rank& self, const halo_options& op) {
  const p2p_options messages = halo_messages(op, self.id(), self.world_size()).value();
  messages_ = p2p(self, messages);
  op_ = op;
  self_ = self.id();
  title_ = "op " + op.name + ", rank " + std::to_string(self.id());
  ops::neighbours::options around{
      .op = op.name, .listed = {}, .timeout_ns = op.timeout.count(), .declared = terms_of(op)};
  for (const auto& [from, to] : messages.edges) {
    if (from == self.id()) around.listed.push_back(to);
  }
  around_ = &*self.attach(std::make_unique<ops::neighbours>(self.services(), messages_.edges(), std::move(around)));
  if (op.ranks.empty()) {
    for (const rank_id peer : op.neighbours) directions_.push_back({peer, {}, 0, 0});
    return;
  }
  if (op.width.empty()) op_.width.assign(op.ranks.size(), 1);
  if (messages_.idle()) return;
  place_ = place_of(op, self.id());
  for (const ops::place& to : directions_of(op)) {
    const auto peer = neighbour_of(op, place_, to);
    if (peer) directions_.push_back({*peer, to, tag_of(to), tag_of({-to[0], -to[1], -to[2]})});
  }
}

// ---- plans ------------------------------------------------------------------------------------------------------------

void halo::check(const halo_field& f, std::size_t number) const {
  const auto wrong = [&](const std::string& what) {
    runtime::raise({errc::bad_argument, title_ + ": field " + std::to_string(number) + " " + what});
  };
  if (f.element_bytes == 0) wrong("has elements of 0 bytes");
  if (op_.memory != nullptr) {
    const auto there = op_.memory->check(f.memory);
    if (!there) wrong("has " + there.reason().text());
  }
  const std::uint64_t elements = f.memory.size() / f.element_bytes;
  if (op_.ranks.empty()) {
    if (!f.cells.empty())
      wrong("is one of a grid, and the op is a mesh; give its options `.ranks`, how many along each dimension");
    if (f.send.size() != directions_.size() || f.receive.size() != directions_.size())
      wrong("needs a list to send and one to receive for each of " + std::to_string(directions_.size()) +
            " neighbours");
    for (const auto* lists : {&f.send, &f.receive}) {
      for (const auto& list : *lists) {
        for (const std::uint64_t i : list) {
          if (i >= elements) wrong("has " + std::to_string(elements) + " elements, and no index " + std::to_string(i));
        }
      }
    }
    return;
  }
  if (f.cells.size() != op_.ranks.size())
    wrong("has " + std::to_string(f.cells.size()) + " dimensions where the op has " + std::to_string(op_.ranks.size()));
  if (!f.strides.empty() && (f.strides.size() != f.cells.size() || f.strides.back() != 1))
    wrong("needs one stride for each dimension, and the last stride must be 1");
  std::uint64_t last = 0;
  std::uint64_t whole = 1;
  bool is_empty = false;
  bool too_much = false;  // more than 64 bits can count
  for (std::size_t d = f.cells.size(); d-- > 0;) {
    std::uint64_t with_rim = 0;
    too_much = too_much || __builtin_mul_overflow(2, op_.width[d], &with_rim) ||
               __builtin_add_overflow(with_rim, f.cells[d], &with_rim);
    if (f.cells[d] < op_.width[d])
      wrong("has " + std::to_string(f.cells[d]) + " cells, but its rim alone is " + std::to_string(op_.width[d]) +
            " wide");
    const std::uint64_t stride = f.strides.empty() ? whole : f.strides[d];
    if (stride < whole) wrong("has rows that overlap: a stride of " + std::to_string(stride));
    is_empty = is_empty || with_rim == 0;
    std::uint64_t across = 0;
    too_much = too_much || __builtin_mul_overflow(with_rim - std::min<std::uint64_t>(with_rim, 1), stride, &across) ||
               __builtin_add_overflow(last, across, &last) || __builtin_mul_overflow(stride, with_rim, &whole);
  }
  if (too_much) wrong("has more cells, or a longer stride, than any memory holds; see whether a number is negative");
  if (is_empty) return;
  if (last >= elements)
    wrong("has " + std::to_string(elements) + " elements, and with its rim needs " + std::to_string(last + 1));
  // The cells may belong to another grid, or be in another order. Then the wrong elements would be sent.
  if (f.strides.empty() && last + 1 < elements)
    wrong("has " + std::to_string(elements) + " elements, and its cells with their rim are " +
          std::to_string(last + 1) + "; correct `cells`, give `strides`, or pass only the part that they fill");
}

namespace {

memory_pieces box_of(const halo_field& f, const std::vector<std::uint64_t>& width, const std::array<int, 3>& to,
                     bool ghosts) {
  const std::size_t dimensions = f.cells.size();
  std::array<std::uint64_t, 3> count{1, 1, 1};
  std::array<std::uint64_t, 3> stride{0, 0, 0};
  std::uint64_t offset = 0;
  std::uint64_t elements = 1;
  // A block of fewer than three dimensions uses the last of the three.
  for (std::size_t d = dimensions; d-- > 0;) {
    const std::size_t at = 3 - dimensions + d;
    const std::uint64_t rim = width[d];
    stride[at] = f.strides.empty() ? elements : f.strides[d];
    elements *= f.cells[d] + 2 * rim;
    std::uint64_t from = rim;
    count[at] = to[d] == 0 ? f.cells[d] : rim;
    if (to[d] > 0) from = ghosts ? rim + f.cells[d] : f.cells[d];
    if (to[d] < 0) from = ghosts ? 0 : rim;
    offset += from * stride[at];
  }
  memory_pieces r;
  r.base = f.memory.data() + offset * f.element_bytes;
  r.bytes = count[2] * f.element_bytes;
  r.outer = {memory_pieces::repetition{count[0], stride[0] * f.element_bytes},
             memory_pieces::repetition{count[1], stride[1] * f.element_bytes}};
  // Adjacent pieces become one.
  for (std::size_t k = 2; k-- > 0;) {
    if (r.outer[k].count != 1 && r.outer[k].stride_bytes != r.bytes) break;
    r.bytes *= r.outer[k].count;
    r.outer[k] = {};
  }
  return r;
}

// The cells of a field together with their rim.
memory_pieces with_rim(const halo_field& f, const std::vector<std::uint64_t>& width) {
  halo_field whole = f;
  std::uint64_t elements = 1;
  for (std::size_t d = whole.cells.size(); d-- > 0;) {
    if (f.strides.empty()) whole.strides.insert(whole.strides.begin(), elements);
    whole.cells[d] += 2 * width[d];
    elements *= whole.cells[d];
  }
  memory_pieces r = box_of(whole, width, {0, 0, 0}, false);  // begins behind a second rim, which does not exist
  r.base = f.memory.data();
  return r;
}

}  // namespace

memory_pieces halo::region(const halo_field& f, std::size_t neighbour, bool ghosts) const {
  if (!op_.ranks.empty()) return box_of(f, op_.width, directions_[neighbour].to, ghosts);
  memory_pieces r;
  r.base = f.memory.data();
  r.bytes = f.element_bytes;
  r.outer[0].count = 0;  // also if the list is empty
  for (const std::uint64_t i : (ghosts ? f.receive : f.send)[neighbour]) r.offsets.push_back(i * f.element_bytes);
  return r;
}

namespace {

std::uint64_t total_of(const std::vector<memory_pieces>& regions) {
  std::uint64_t sum = 0;
  for (const memory_pieces& r : regions) sum += r.total_bytes();
  return sum;
}

bool in_place(const std::vector<memory_pieces>& regions) { return regions.size() == 1 && regions[0].contiguous(); }

// Two ranks get the same hash if their pieces have the same lengths in the same order. 0 without pieces.
std::uint64_t hash_of(const std::unique_ptr<actors::payload_pieces>& pieces) {
  if (pieces == nullptr) return 0;
  std::vector<std::uint64_t> sizes;
  for (const std::span<std::byte> each : pieces->all) sizes.push_back(each.size());
  return std::max<std::uint64_t>(tuning::payload_check(std::as_bytes(std::span(sizes))), 1);
}

}  // namespace

// The pieces of regions that may be sent by the piece; null for other regions. A mesh has to pack: it may send an element that it also
// receives.
std::unique_ptr<actors::payload_pieces> halo::few_and_long(const std::vector<memory_pieces>& regions, rank_id peer,
                                                           std::span<std::byte> packed) const {
  const bool has_use =
      std::any_of(op_.configs.begin(), op_.configs.end(), [](const config_ptr& c) { return c->goes_by_piece(); });
  const bool in_host_memory = op_.memory == nullptr || !op_.memory->has_streams();
  if (!has_use || !in_host_memory || op_.ranks.empty() || peer == self_) return nullptr;
  std::uint64_t count = 0;
  for (const memory_pieces& r : regions) {
    count += r.count();
    if (r.bytes < std::max<std::uint64_t>(op_.by_piece_from, 1)) return nullptr;
  }
  if (count == 0 || count > halo_options::most_pieces) return nullptr;
  auto made = std::make_unique<actors::payload_pieces>();
  made->packed = packed;
  for (const memory_pieces& r : regions) r.for_each([&](std::span<std::byte> each) { made->all.push_back(each); });
  return made;
}

namespace {
bool share_memory(const std::vector<halo_field>& fields) {
  std::vector<std::span<std::byte>> all;
  for (const halo_field& f : fields) all.push_back(f.memory);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
  const auto overlap = [](const auto& a, const auto& b) { return a.data() + a.size() > b.data(); };
  return std::adjacent_find(all.begin(), all.end(), overlap) != all.end();
}
}  // namespace

// Ghosts of one field must not lie in another field: they would overwrite its cells.
void halo::check_apart(const std::vector<halo_field>& fields, const std::vector<halo_plan::link>& links) const {
  struct piece {
    std::span<std::byte> at;
    std::size_t field;
    bool ghost;
    const std::byte* end() const noexcept { return at.data() + at.size(); }
  };
  std::vector<piece> all;
  const auto add = [&](const memory_pieces& r, std::size_t field, bool ghost) {
    r.for_each([&](std::span<std::byte> each) {
      if (!each.empty()) all.push_back({each, field, ghost});
    });
  };
  for (std::size_t i = 0; i < fields.size(); ++i) {
    add(with_rim(fields[i], op_.width), i, false);
    for (const halo_plan::link& l : links) add(l.in[i], i, true);
  }
  std::sort(all.begin(), all.end(), [](const piece& a, const piece& b) { return a.at.data() < b.at.data(); });
  std::vector<std::array<const piece*, 2>> farthest(fields.size());  // so far: of each field's cells, and of its ghosts
  for (const piece& p : all) {
    for (std::size_t other = 0; other < fields.size(); ++other) {
      const piece* const before = farthest[other][p.ghost ? 0 : 1];
      if (other == p.field || before == nullptr || before->end() <= p.at.data()) continue;
      runtime::raise({errc::bad_argument, title_ + ": field " + std::to_string(std::min(other, p.field)) +
                                              " and field " + std::to_string(std::max(other, p.field)) +
                                              " of one plan overlap: ghosts of one lie in the other; give each field "
                                              "memory of its own"});
    }
    const piece*& mine = farthest[p.field][p.ghost ? 1 : 0];
    if (mine == nullptr || p.end() > mine->end()) mine = &p;
  }
}

halo_plan halo::plan(const std::vector<halo_field>& fields) const {
  halo_plan made;
  made.state_ = new halo_plan::state;
  made.state_->title = title_;
  made.state_->self = self_;
  made.state_->messages = messages_;
  made.state_->around = around_;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    check(fields[i], i);
    made.state_->type = elements_together(made.state_->type, fields[i].type);
  }
  for (std::size_t n = 0; n < directions_.size(); ++n) {
    const direction& d = directions_[n];
    halo_plan::link& l = made.state_->links.emplace_back();
    l.peer = d.peer;
    l.tag_out = d.tag_out;
    l.tag_in = d.tag_in;
    for (const halo_field& f : fields) {
      l.out.push_back(region(f, n, false));
      l.in.push_back(region(f, n, true));
    }
  }
  // A mesh may send an element that it also receives.
  if (!op_.ranks.empty() && share_memory(fields)) check_apart(fields, made.state_->links);
  runtime::memory_space& memory = op_.memory == nullptr ? runtime::host_memory() : *op_.memory;
  made.state_->memory = &memory;
  for (halo_plan::link& l : made.state_->links) {
    for (auto* const pieces : {&l.out, &l.in}) {
      for (memory_pieces& p : *pieces) memory.prepare(p);
    }
    if (!in_place(l.out)) l.packed_out = memory.make(total_of(l.out));
    if (!in_place(l.in)) l.packed_in = memory.make(total_of(l.in));
    if (l.packed_out != nullptr) l.pieces_out = few_and_long(l.out, l.peer, l.packed_out->bytes());
    if (l.packed_in != nullptr) l.pieces_in = few_and_long(l.in, l.peer, l.packed_in->bytes());
    l.registered_out = made.state_->messages.registered(l.sent());
    l.registered_in = made.state_->messages.registered(l.received());
    l.registered_in.keep(l.packed_in);
  }
  if (!memory.has_streams()) {
    made.state_->name_what_is_packed();
    made.state_->name_what_is_unpacked();
  }
  return made;
}

std::span<std::byte> halo_plan::link::sent() noexcept {
  return packed_out == nullptr ? std::span(out[0].base, out[0].bytes) : packed_out->bytes();
}

std::span<std::byte> halo_plan::link::received() noexcept {
  return packed_in == nullptr ? std::span(in[0].base, in[0].bytes) : packed_in->bytes();
}

std::uint64_t halo_plan::sent_bytes() const noexcept {
  std::uint64_t sum = 0;
  if (state_ == nullptr) return sum;
  for (link& l : state_->links) sum += l.sent().size();
  return sum;
}

std::uint64_t halo_plan::packed_bytes() const noexcept {
  std::uint64_t sum = 0;
  if (state_ == nullptr) return sum;
  for (const link& l : state_->links) sum += l.packed_out == nullptr ? 0 : l.packed_out->bytes().size();
  return sum;
}

std::uint64_t halo_plan::packed_so_far_bytes() const noexcept {
  std::uint64_t sum = 0;
  if (state_ == nullptr) return sum;
  for (const link& l : state_->links)
    sum += l.packed_bytes + (l.pieces_out == nullptr ? 0 : l.pieces_out->packed_bytes);
  return sum;
}

void halo_plan::state::check(link& l, std::uint64_t came) const {
  if (came == l.received().size()) return;
  runtime::error_facts about = around->about(l.peer);
  about.whole_bytes = came;
  about.own_bytes = l.received().size();
  runtime::raise(error::in_words(errc::bad_argument, about,
                                 title + ": rank " + std::to_string(l.peer) + " sent " + std::to_string(came) +
                                     " bytes where " + std::to_string(l.received().size()) +
                                     " were expected; give neighbours fields that fit together"));
}

namespace {
// One number contains a payload's size in its low bits, and the hash of the op's declaration in its high bits.
constexpr unsigned size_bits = 64 - neighbours::declared_hash_bits;
constexpr std::uint64_t size_mask = (std::uint64_t{1} << size_bits) - 1;
}  // namespace

// If the two ranks have declared the op differently, that is the error, even if the sizes differ too.
void halo_plan::state::check_said(link& l, std::span<const std::uint64_t> theirs) const {
  if (theirs[0] >> size_bits != around->declared_hash()) return around->differs(l.peer);
  check(l, theirs[0] & size_mask);
  if (theirs[1] == l.sent().size()) return;
  runtime::error_facts about = around->about(l.peer);
  about.whole_bytes = theirs[1];
  about.own_bytes = l.sent().size();
  runtime::raise(error::in_words(errc::bad_argument, about,
                                 title + ": rank " + std::to_string(l.peer) + " expects " + std::to_string(theirs[1]) +
                                     " bytes where this rank sends " + std::to_string(l.sent().size()) +
                                     "; give neighbours fields that fit together"));
}

void halo_plan::state::hear_of_pieces(link& l, std::span<const std::uint64_t> theirs) const noexcept {
  using likeness = actors::payload_pieces::likeness;
  if (l.pieces_out != nullptr)
    l.pieces_out->like = theirs[3] == hash_of(l.pieces_out) ? likeness::alike : likeness::unlike;
}

void halo_plan::state::pack(link& l, runtime::device_stream stream) const {
  if (l.packed_out == nullptr || l.pieces_out != nullptr) return;
  std::span<std::byte> into = l.packed_out->bytes();
  l.packed_bytes += into.size();
  for (const memory_pieces& p : l.out) {
    memory->gather(into.first(p.total_bytes()), p, stream);
    into = into.subspan(p.total_bytes());
  }
}

void halo_plan::state::unpack(link& l, runtime::device_stream stream) const {
  if (l.packed_in == nullptr || l.pieces_in != nullptr) return;
  std::span<const std::byte> from = l.packed_in->bytes();
  for (const memory_pieces& p : l.in) {
    memory->scatter(p, from.first(p.total_bytes()), stream);
    from = from.subspan(p.total_bytes());
  }
}

// Lists the buffers of packing on the host. On a device, the stream of the exchange packs and unpacks.
void halo_plan::state::name_what_is_packed() {
  for (link& l : links) {
    if (l.packed_out == nullptr || l.pieces_out != nullptr) continue;
    packs.push_back(runtime::writes(l.sent()));
    for (const memory_pieces& p : l.out) packs.push_back(runtime::reads(p.around()));
  }
}

// Lists the buffers of unpacking on the host: packed ghosts, and the memory that they are unpacked into.
void halo_plan::state::name_what_is_unpacked() {
  for (link& l : links) {
    const bool is_unpacked = l.packed_in != nullptr && l.pieces_in == nullptr;
    if (is_unpacked) unpacks.push_back(runtime::writes(l.received()));
    for (const memory_pieces& p : l.in) {
      if (p.count() == 0) continue;
      if (is_unpacked) unpacks.push_back(runtime::updates(p.around()));
      afresh.push_back(runtime::writes(p.around()));
    }
  }
}

void halo_plan::state::after_receive(const p2p_operation& o, std::uint64_t came) {
  link& l = link_of(o);
  around->heard(l.peer);
  check(l, came);
  l.has_come = true;
}

// Messages of this rank to itself do not concern its neighbours.
void halo_plan::state::on_given_up(const p2p_operation& o, const error& why) noexcept {
  if (around != nullptr && o.peer != self) around->give_up(why);
}

// A flow may have many exchanges behind a failed one. A neighbour that waits for one of them gets this news and so does not time out.
void halo_plan::state::on_left_out(const p2p_operation& o, const error& why) noexcept {
  if (why.code() == errc::cancelled) return on_given_up(o, why);
  if (around != nullptr && o.peer != self) around->close(why);
}

halo_plan::link& halo_plan::state::link_of(const p2p_operation& o) noexcept {
  const bool sends = o.what == p2p_operation::kind::send;
  return *std::find_if(links.begin(), links.end(),
                       [&](const link& l) { return l.peer == o.peer && (sends ? l.tag_out : l.tag_in) == o.tag; });
}

p2p_operation halo_plan::state::receive_of(link& l) {
  p2p_operation o = p2p::irecv(l.received(), {.from = l.peer, .tag = l.tag_in});
  o.hooks = this;
  o.type = type;
  o.pieces = l.pieces_in.get();
  return o;
}

p2p_operation halo_plan::state::send_of(link& l) {
  p2p_operation o = p2p::isend(l.sent(), {.to = l.peer, .tag = l.tag_out});
  o.pieces = l.pieces_out.get();
  o.hooks = this;
  o.type = type;
  return o;
}

void halo_plan::check_stream(runtime::device_stream stream) const {
  if (state_->memory->has_streams() && stream == nullptr)
    runtime::raise(
        {errc::bad_argument, state_->title + ": its fields lie on a device; say in which stream kernels work on them"});
}

namespace {
template <class State>
State& made(const boost::intrusive_ptr<State>& state) {
  if (state != nullptr) return *state;
  runtime::raise({errc::bad_argument,
                  "this halo_plan is empty: it was never assigned, or was moved away; make one with halo::plan"});
}
}  // namespace

void halo_plan::open(runtime::dataflow& flow, runtime::device_stream stream) {
  made(state_).messages.check_caller();
  check_stream(stream);
  if (receiving_.size() != 0)
    runtime::raise({errc::bad_argument, state_->title + ": it is open already; start the exchange first"});
  if (!state_->memory->has_streams()) check_latest(flow);
  std::vector<flow_work> all;
  begin_anew_if_failed(flow, all);
  std::vector<p2p_operation> batch;
  for (link& l : state_->links) batch.push_back(state_->receive_of(l));
  if (batch.empty()) return;
  all.push_back(state_->messages.start(flow, batch, {.stream = stream, .ahead = true}));
  receiving_ = flow.together(all);
  receiving_flow_ = &flow;
}

// Compares sizes once per plan and generation. Otherwise only the receiver would notice a message of another size, and the sender would
// not.
void halo_plan::compare(runtime::dataflow& flow, std::vector<flow_work>& all) {
  constexpr std::uint32_t beside = 32;  // beyond the tags of ghosts
  for (link& l : state_->links) {
    if (!l.terms.due(state_->messages, l.peer)) continue;
    if (l.pieces_out != nullptr) l.pieces_out->like = actors::payload_pieces::likeness::unknown;
    auto check = [plan = state_, with = &l](std::span<const std::uint64_t>, std::span<const std::uint64_t> theirs) {
      plan->check_said(*with, theirs);
      plan->hear_of_pieces(*with, theirs);
    };
    all.push_back(
        l.terms.start(flow, state_->messages,
                      {.peer = l.peer,
                       .tag_out = beside + l.tag_out,
                       .tag_in = beside + l.tag_in,
                       .remark = "; this message compares the sizes of a new plan with the neighbour's: see whether "
                                 "all ranks make the same plans, and start them in the same order"},
                      {l.sent().size() | state_->around->declared_hash() << size_bits, l.received().size(),
                       hash_of(l.pieces_out), hash_of(l.pieces_in)},
                      std::move(check)));
  }
}

// Packs all that is sent packed, in order with the other steps that name the fields.
class halo_plan::packing final : public runtime::flow_step {
 public:
  explicit packing(boost::intrusive_ptr<state> of) noexcept : plan_(std::move(of)) {}
  std::string title() const override { return plan_->title + ": packing"; }

 private:
  void go() noexcept override {
    for (link& l : plan_->links) plan_->pack(l, nullptr);
    end();
  }
  const boost::intrusive_ptr<state> plan_;
};

// Unpacks all data that has arrived, in order with the other steps that name the fields: after the receives, even if some failed. It is not
// abandoned then, because an abandoned step would count as a failed write to the fields and would make the next exchange fail.
class halo_plan::unpacking final : public runtime::flow_step {
 public:
  explicit unpacking(boost::intrusive_ptr<state> of) noexcept : plan_(std::move(of)) {}
  std::string title() const override { return plan_->title + ": unpacking"; }

 private:
  void go() noexcept override {
    for (link& l : plan_->links) {
      if (std::exchange(l.has_come, false)) plan_->unpack(l, nullptr);
    }
    end();
  }
  void on_abandoned() noexcept override {
    for (link& l : plan_->links) l.has_come = false;
  }
  const boost::intrusive_ptr<state> plan_;
};

void halo_plan::check_latest(const runtime::dataflow& flow) const {
  const bool on_device = state_->memory->has_streams();
  if (latest_.over() || (latest_flow_ == &flow && !on_device)) return;
  runtime::raise({errc::bad_argument, state_->title + ": its last exchange is still in flight" +
                                          (on_device ? "" : ", in another flow") +
                                          "; await it before the next one is started"});
}

void halo_plan::begin_anew_if_failed(runtime::dataflow& flow, std::vector<flow_work>& all) {
  if (!latest_.failed()) return;
  latest_ = {};
  if (!state_->afresh.empty()) all.push_back(flow.add(runtime::new_step<unpacking>(state_), state_->afresh));
}

// If the buffers are free, packs at once, without a step.
void halo_plan::pack(runtime::dataflow& flow, std::vector<flow_work>& all) {
  const auto& uses = state_->packs;
  if (uses.empty()) return;
  if (!std::all_of(uses.begin(), uses.end(), [&](const auto& use) { return flow.is_free(use); })) {
    all.push_back(flow.add(runtime::new_step<packing>(state_), uses));
    return;
  }
  for (link& l : state_->links) state_->pack(l, nullptr);
}

namespace {
runtime::task<> exchange_plan_in(runtime::dataflow& flow, halo_plan* plan, runtime::device_stream stream) {
  auto moving = plan->start(flow, stream);
  co_await moving;
}
}  // namespace

runtime::task<> halo_plan::exchange(runtime::device_stream stream) {
  return runtime::with_dataflow(exchange_plan_in, this, stream);
}

flow_work halo_plan::start(runtime::dataflow& flow, runtime::device_stream stream) {
  auto& links = made(state_).links;
  state_->messages.check_caller();
  check_stream(stream);
  if (state_->around != nullptr) state_->around->throw_refused();
  if (links.empty()) return flow.together(std::span<const runtime::flow_part>());
  check_latest(flow);
  if (receiving_.size() != 0 && !receiving_.over() && receiving_flow_ != &flow)
    runtime::raise({errc::bad_argument, state_->title + ": it was opened in another flow; start the exchange there"});
  for (const link& l : links) state_->around->expect(l.peer);
  const bool on_device = state_->memory->has_streams();
  if (on_device && receiving_.size() == 0) open(flow, stream);
  const bool is_open = receiving_.size() != 0;
  std::vector<flow_work> beside;
  if (is_open) {
    beside.push_back(std::exchange(receiving_, {}));
  } else {
    begin_anew_if_failed(flow, beside);
  }
  pack(flow, beside);
  // Sends come first, so that packed data contains nothing that this exchange receives.
  boost::container::small_vector<p2p_operation, 8> batch;
  for (link& l : links) {
    if (on_device) state_->pack(l, stream);
    batch.push_back(state_->send_of(l));
  }
  for (link& l : links) {
    if (!is_open) batch.push_back(state_->receive_of(l));
  }
  if (!on_device) compare(flow, beside);
  flow_work moving = state_->messages.start(flow, batch, {.stream = stream});
  for (link& l : links) {
    if (!on_device) break;
    state_->memory->wait_on(l.received(), stream);
    state_->unpack(l, stream);
  }
  if (!state_->unpacks.empty()) beside.push_back(flow.add(runtime::new_step<unpacking>(state_), state_->unpacks));
  if (!beside.empty()) {
    beside.push_back(std::move(moving));
    moving = flow.together(beside);
  }
  latest_ = moving.share();
  latest_flow_ = &flow;
  return moving;
}

}  // namespace parley::ops
