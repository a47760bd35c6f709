#include <parley/ops/edges/declared_edge.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

namespace parley::ops {

using runtime::errc;

declared_edge::declared_edge(edge_host& on, edge_options o, end which)
    : host_(on), peer_(o.peer), which_(which),
      id_(which == end::out ? actors::declare_edge(o.name, on.id(), o.peer, o.dtype).id()
                            : actors::declare_edge(o.name, o.peer, on.id(), o.dtype).id()),
      options_(std::make_unique<edge_options>(std::move(o))) {
  listen();
}

std::string declared_edge::title() const {
  if (made()) return mine()->declaration().title();
  const rank_id self = host_.id();
  return sends() ? actors::declare_edge(options_->name, self, peer_, {}).title()
                 : actors::declare_edge(options_->name, peer_, self, {}).title();
}

declared_edge::~declared_edge() {
  if (!made()) stop_listening();
}

// The first message for an unused edge is an offer at the sender, and data at the receiver.
void declared_edge::listen() {
  if (which_ == end::in) {
    host_.data().bind(id_, *this);
  } else {
    host_.mail().bind_raw(actors::number_of(id_, actors::part::coordinator),
                          runtime::router::type_bit(actors::offer::message_type),
                          [this](runtime::envelope, std::span<const std::byte>) {
                            make_soon();
                            return errc::full;  // the router delivers it again later; the coordinator accepts it then
                          });
  }
}

void declared_edge::stop_listening() {
  if (which_ == end::in) {
    host_.data().unbind(id_);
  } else {
    host_.mail().unbind(actors::number_of(id_, actors::part::coordinator));
  }
}

void declared_edge::make() {
  if (made()) return;
  stop_listening();
  try {
    make_end();
  } catch (...) {
    if (!made()) listen();
    throw;
  }
}

void declared_edge::make_end() {
  if (which_ == end::out) {
    out_ = &host_.add_out(*options_);
    if (former_ != nullptr) former_->hand_over(*out_);
  } else {
    in_ = &host_.add_in(*options_);
    if (former_ != nullptr) former_->hand_over(*in_);
  }
  options_.reset();
  former_ = nullptr;
}

void declared_edge::before_restart_of(rank_id r) {
  const auto* const others = coupled();
  if (others != nullptr && std::find(others->begin(), others->end(), r) != others->end() && !made()) make_or_warn();
}

bool declared_edge::rejoin() {
  if (!made() || mine()->is_current()) return false;
  renew();
  return true;
}

// First restores the state that the edge had before its first use. If making the new end then throws, the next use makes it.
void declared_edge::renew() {
  being_made_ = false;
  if (!made()) return;
  options_ = std::make_unique<edge_options>(mine()->options());
  former_ = mine();
  edge_out* const sender = std::exchange(out_, nullptr);
  edge_in* const receiver = std::exchange(in_, nullptr);
  std::vector<runtime::arrival> early;
  if (sender != nullptr) {
    sender->retire();
  } else {
    early = receiver->retire();
  }
  host_.put_aside(*former_);
  listen();
  make();
  if (receiver != nullptr && receiver->receiver().has_lost_unjoined()) in_->refuse_overflow();
  for (runtime::arrival& m : early) host_.data().on_arrival(std::move(m));
}

void declared_edge::renew_or_warn() noexcept {
  try {
    renew();
  } catch (...) {
    warn_not_made();
  }
}

// Posts `make`, because it destroys the handler that calls this function.
void declared_edge::make_soon() {
  if (std::exchange(being_made_, true)) return;
  host_.where().post([this, alive = host_.alive()] {
    if (!alive.expired()) make_or_warn();
  });
}

// `make` runs no user code here, but memory may run out. Then the next use tries again; if that is a call, it throws.
void declared_edge::make_or_warn() noexcept {
  try {
    make();
  } catch (...) {
    warn_not_made();
  }
}

void declared_edge::warn_not_made() noexcept {
  being_made_ = false;
  actors::warn(host_.services(), "an edge with rank " + std::to_string(peer_) +
                                     " could not be created, and messages that arrived for it are lost: " +
                                     runtime::describe(std::current_exception()).what());
}

void declared_edge::on_data(const actors::stamp&, runtime::arrival&& message) noexcept {
  make_or_warn();
  if (made()) host_.data().on_arrival(std::move(message));
}

}  // namespace parley::ops
