#include <parley/config.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

tuning::config_identity checked(tuning::config_identity identity) {
  auto canonical = tuning::canonical(std::move(identity));
  if (!canonical) runtime::raise({errc::bad_argument, canonical.reason().text});
  return std::move(canonical).value();
}

/// The chunks of a payload, of `chunk_bytes` each; the last one has the rest. 0: one chunk. An empty payload has none.
///
///     for (const auto [at, chunk] : in_chunks(data, 1 << 20)) co_await out.send(at, chunk);
template <class Byte>
class in_chunks {
 public:
  in_chunks(std::span<Byte> data, std::size_t chunk_bytes) noexcept
      : data_(data), step_(chunk_bytes == 0 ? data.size() : chunk_bytes) {}
  struct piece {
    std::size_t at;
    std::span<Byte> bytes;
  };
  struct iterator {
    const in_chunks* of;
    std::size_t at;
    piece operator*() const noexcept { return {at, of->data_.subspan(at, std::min(of->step_, of->data_.size() - at))}; }
    iterator& operator++() noexcept {
      at += (**this).bytes.size();
      return *this;
    }
    bool operator==(const iterator& other) const noexcept { return at == other.at; }
  };
  iterator begin() const noexcept { return {this, 0}; }
  iterator end() const noexcept { return {this, data_.size()}; }

 private:
  std::span<Byte> data_;
  std::size_t step_;
};

/// Describes what a config with these parameters does for a payload of so many bytes. Chunks as long as the payload mean one chunk, and no
/// more chunks are in flight than there are.
std::string cut_as(const std::string& name, std::uint64_t bytes, std::uint64_t chunk_bytes, std::uint64_t in_flight) {
  if (chunk_bytes == 0 || bytes <= chunk_bytes) return name + " whole";
  const std::uint64_t chunks = bytes / chunk_bytes + (bytes % chunk_bytes == 0 ? 0 : 1);
  return name + " in " + std::to_string(chunk_bytes) + ", " + std::to_string(std::min(in_flight, chunks)) +
         " at a time";
}

class direct_config final : public paired_config {
 public:
  direct_config() : paired_config({.name = "direct", .wire_class = "whole"}, every_size) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
};

class chunked_config final : public paired_config {
 public:
  chunked_config(std::uint64_t chunk_bytes, std::uint64_t in_flight)
      : paired_config({.name = "chunked",
                       .parameters = {{"chunk_bytes", chunk_bytes}, {"in_flight", in_flight}},
                       .wire_class = "chunks_" + std::to_string(chunk_bytes)},
                      chunk_bytes),
        chunk_bytes_(chunk_bytes), in_flight_(in_flight) {}

  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    out.keep_in_flight(in_flight_);
    for (const auto [at, chunk] : in_chunks(data, chunk_bytes_)) co_await out.send(at, chunk);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    in.keep_in_flight(in_flight_);
    for (const auto [at, chunk] : in_chunks(data, chunk_bytes_)) co_await in.receive(at, chunk);
  }

  std::string shape(std::uint64_t bytes) const override {
    return goes_whole(bytes) ? paired_config::shape(bytes) : cut_as("chunked", bytes, chunk_bytes_, in_flight_);
  }

 private:
  std::uint64_t chunk_bytes_;
  std::uint64_t in_flight_;
};

std::vector<tuning::parameter> cut_into(std::uint64_t chunk_bytes, std::uint64_t in_flight, device_copy by = {}) {
  std::vector<tuning::parameter> all;
  if (chunk_bytes != 0) all = {{"chunk_bytes", chunk_bytes}, {"in_flight", in_flight}};
  if (by.kernel_blocks != 0) all.emplace_back("kernel_blocks", by.kernel_blocks);
  if (by.streams != 0) all.emplace_back("streams", by.streams);
  return all;
}

class one_sided_config : public paired_config {
 public:
  runtime::result<> works_over(const runtime::link& net, const runtime::memory_space* memory) const override {
    if (memory != nullptr && memory->has_streams()) return net.one_sided_devices();
    if (by_ == device_copy{}) return {};
    return error{errc::unavailable,
                 "kernel_blocks and streams say how a GPU copies, but the payload lies in host memory"};
  }
  std::string shape(std::uint64_t bytes) const override {
    return cut_as(identity().name, bytes, chunk_bytes_, in_flight_) + " by " + std::to_string(by_.kernel_blocks) +
           " blocks and " + std::to_string(by_.streams) + " streams";
  }

 protected:
  one_sided_config(const std::string& name, std::uint64_t chunk_bytes, std::uint64_t in_flight, device_copy by,
                   needs what)
      : paired_config({.name = name, .parameters = cut_into(chunk_bytes, in_flight, by), .wire_class = name}, 0, what),
        chunk_bytes_(chunk_bytes), in_flight_(in_flight), by_(by) {}
  std::size_t chunk_bytes_;
  std::uint64_t in_flight_;
  device_copy by_;
};

class put_config final : public one_sided_config {
 public:
  put_config(std::uint64_t chunk_bytes, std::uint64_t in_flight, device_copy by)
      : one_sided_config("put", chunk_bytes, in_flight, by, needs::credit) {}

  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    out.keep_in_flight(in_flight_);
    for (const auto [at, chunk] : in_chunks(data, chunk_bytes_)) co_await out.put(at, chunk, by_);
  }
  // The bytes of a put arrive before its stamp.
  task<> receive(part_receiver& in, std::span<std::byte>) const override {
    if (!in.landed()) runtime::raise({errc::config_failed, "the sender announced a put, but has put nothing"});
    co_return;
  }
  bool is_over_once_landed() const noexcept override { return true; }
  bool puts_whole() const noexcept override { return chunk_bytes_ == 0 && by_ == device_copy{}; }
};

class get_config final : public one_sided_config {
 public:
  get_config(std::uint64_t chunk_bytes, std::uint64_t in_flight, device_copy by)
      : one_sided_config("get", chunk_bytes, in_flight, by, needs::known_payload) {}

  task<> send(part_sender& out, std::span<const std::byte>) const override { co_await out.offer(); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    in.keep_in_flight(in_flight_);
    for (const auto [at, chunk] : in_chunks(data, chunk_bytes_)) co_await in.get(at, chunk, by_);
  }
};

// Active messages whose payloads lie on devices at both ends.
class ucx_config final : public paired_config {
 public:
  ucx_config(std::uint64_t chunk_bytes, std::uint64_t in_flight)
      : paired_config({.name = "ucx",
                       .parameters = cut_into(chunk_bytes, in_flight),
                       .wire_class = "ucx_" + std::to_string(chunk_bytes)}),
        chunk_bytes_(chunk_bytes), in_flight_(in_flight) {}
  std::vector<std::string> requirements() const override { return {"ucx"}; }
  runtime::result<> works_over(const runtime::link& net, const runtime::memory_space* memory) const override {
    if (memory == nullptr || !memory->has_streams())
      return error{errc::unavailable, "it is for payloads on a device; for payloads in host memory use direct"};
    return net.moves_devices();
  }
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    out.keep_in_flight(in_flight_);
    for (const auto [at, chunk] : in_chunks(data, chunk_bytes_)) co_await out.send_device(at, chunk);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    in.keep_in_flight(in_flight_);
    for (const auto [at, chunk] : in_chunks(data, chunk_bytes_)) co_await in.receive_device(at, chunk);
  }
  std::string shape(std::uint64_t bytes) const override { return cut_as("ucx", bytes, chunk_bytes_, in_flight_); }

 private:
  std::size_t chunk_bytes_;
  std::uint64_t in_flight_;
};

// A get that both GPUs carry out together. NCCL cuts and overlaps the bytes by itself.
class nccl_config final : public paired_config {
 public:
  nccl_config() : paired_config({.name = "nccl", .wire_class = "nccl"}, 0, needs::known_payload) {}
  std::vector<std::string> requirements() const override { return {"nccl"}; }
  runtime::result<> works_over(const runtime::link& net, const runtime::memory_space*) const override {
    return net.joint();
  }
  task<> send(part_sender& out, std::span<const std::byte>) const override { co_await out.offer(); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.joint_get(0, data); }
};

// Sends a payload piece by piece, without packing it. A rehearsal has no pieces: its payload is contiguous and sent whole.
class by_piece_config final : public paired_config {
 public:
  explicit by_piece_config(std::uint64_t in_flight)
      : paired_config({.name = "by_piece", .parameters = {{"in_flight", in_flight}}, .wire_class = "pieces"}, 0,
                      needs::like_pieces),
        in_flight_(in_flight) {}

  runtime::result<> works_over(const runtime::link&, const runtime::memory_space* memory) const override {
    if (memory == nullptr || !memory->has_streams()) return {};
    return error{errc::unavailable, "it is for payloads in host memory; those on a device are packed by kernels"};
  }
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    if (out.in_pieces() == nullptr) {
      co_await out.send(0, data);
      co_return;
    }
    out.keep_in_flight(in_flight_);
    std::uint64_t at = 0;
    for (const std::span<std::byte> piece : out.in_pieces()->all) {
      co_await out.send(at, piece);
      at += piece.size();
    }
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    if (in.in_pieces() == nullptr) {
      co_await in.receive(0, data);
      co_return;
    }
    in.keep_in_flight(in_flight_);
    std::uint64_t at = 0;
    for (const std::span<std::byte> piece : in.in_pieces()->all) {
      co_await in.receive(at, piece);
      at += piece.size();
    }
  }

 private:
  std::uint64_t in_flight_;
};

void check_in_flight(const std::string& config, std::uint64_t in_flight) {
  constexpr auto most = actors::parts_in_flight::most_in_flight;
  if (in_flight == 0 || in_flight > most)
    runtime::raise({errc::bad_argument, config + " takes in_flight of 1 to " + std::to_string(most) + ", not " +
                                            std::to_string(in_flight)});
}

void check_copy(const std::string& config, device_copy by) {
  if (std::max(by.kernel_blocks, by.streams) > most_of_a_copy)
    runtime::raise({errc::bad_argument, config + " takes kernel_blocks and streams of up to " +
                                            std::to_string(most_of_a_copy) + ", not " +
                                            std::to_string(std::max(by.kernel_blocks, by.streams))});
}

class function_config final : public paired_config {
 public:
  function_config(tuning::config_identity identity, send_function sends, receive_function receives)
      : paired_config(std::move(identity)), send_(sends), receive_(receives) {
    if (sends == nullptr || receives == nullptr)
      runtime::raise({errc::bad_argument, "config " + id() + " has no implementation for role " +
                                              (sends == nullptr ? "sender" : "receiver") +
                                              "; a paired config needs one for each"});
  }
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    out.runs(identity());
    return send_(out, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    in.runs(identity());
    return receive_(in, data);
  }

 private:
  send_function send_;
  receive_function receive_;
};

error unknown(std::string_view text, const std::string& why) {
  return {
      errc::bad_argument,
      "config \"" + std::string(text) + "\" " + why +
          "; known are direct, chunked(chunk_bytes=SIZE in_flight=COUNT), by_piece(in_flight=COUNT), nccl, and "
          "put, get and ucx, which may have the same parameters as chunked; put and get also kernel_blocks=COUNT and "
          "streams=COUNT, on GPUs"};
}

}  // namespace

paired_config::paired_config(tuning::config_identity identity, std::uint64_t whole_up_to, needs what)
    : op_config(std::move(identity)), whole_up_to_(whole_up_to), needs_(what) {
  if (goes_by_piece() && whole_up_to != 0)
    runtime::raise(
        {errc::bad_argument, "config " + id() + " sends payloads piece by piece, never whole; leave whole_up_to at 0"});
}

op_config::op_config(tuning::config_identity identity)
    : identity_(checked(std::move(identity))), id_(tuning::config_id(identity_)), digest_(tuning::digest(identity_)) {}

tuning::catalogue catalogue_of(std::string_view title, const std::vector<const op_config*>& configs) {
  std::vector<tuning::config_identity> identities;
  for (const op_config* c : configs) identities.push_back(c->identity());
  auto made = tuning::catalogue::make(std::move(identities));
  if (!made) runtime::raise({errc::bad_argument, std::string(title) + ": " + made.reason().text});
  return std::move(made).value();
}

runtime::result<> check_catalogue(std::string_view op, const std::vector<config_ptr>& configs) {
  const std::string title = "op " + std::string(op);
  if (configs.empty())
    return error{errc::bad_argument, title + " has an empty catalogue; list at least its default config"};
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (configs[i] == nullptr)
      return error{errc::bad_argument, title + ": config " + std::to_string(i) + " of its catalogue is null"};
  }
  if (configs.front()->what_it_needs() != needs::nothing)
    return error{errc::bad_argument,
                 title + ": its default, " + configs.front()->id() + ", needs " +
                     (configs.front()->goes_by_piece() ? "payloads in pieces" : "registered memory") +
                     ", but the default must always be able to run; list another config first"};
  return {};
}

}  // namespace parley::ops

namespace parley::configs {

ops::config_ptr direct() { return std::make_shared<ops::direct_config>(); }

ops::config_ptr chunked(std::uint64_t chunk_bytes, std::uint64_t in_flight) {
  if (chunk_bytes == 0) runtime::raise({runtime::errc::bad_argument, "chunked needs chunk_bytes of at least 1"});
  ops::check_in_flight("chunked", in_flight);
  return std::make_shared<ops::chunked_config>(chunk_bytes, in_flight);
}

ops::config_ptr put(std::uint64_t chunk_bytes, std::uint64_t in_flight, ops::device_copy by) {
  ops::check_in_flight("put", in_flight);
  ops::check_copy("put", by);
  return std::make_shared<ops::put_config>(chunk_bytes, in_flight, by);
}

ops::config_ptr get(std::uint64_t chunk_bytes, std::uint64_t in_flight, ops::device_copy by) {
  ops::check_in_flight("get", in_flight);
  ops::check_copy("get", by);
  return std::make_shared<ops::get_config>(chunk_bytes, in_flight, by);
}

ops::config_ptr ucx(std::uint64_t chunk_bytes, std::uint64_t in_flight) {
  ops::check_in_flight("ucx", in_flight);
  return std::make_shared<ops::ucx_config>(chunk_bytes, in_flight);
}

ops::config_ptr by_piece(std::uint64_t in_flight) {
  ops::check_in_flight("by_piece", in_flight);
  return std::make_shared<ops::by_piece_config>(in_flight);
}

ops::config_ptr nccl() { return std::make_shared<ops::nccl_config>(); }

}  // namespace parley::configs

namespace parley::ops {

config_ptr paired(tuning::config_identity identity, send_function send, receive_function receive) {
  return std::make_shared<function_config>(std::move(identity), send, receive);
}

runtime::result<config_ptr> named_config(std::string_view text) {
  const auto parsed = tuning::parse_config_id(text);
  if (!parsed) return unknown(text, "cannot be read: " + parsed.reason().text);
  if (parsed->name == "direct" || parsed->name == "nccl") {
    if (!parsed->parameters.empty()) return unknown(text, "takes no parameters");
    return parsed->name == "direct" ? configs::direct() : configs::nccl();
  }
  const bool may_be_whole = parsed->name == "put" || parsed->name == "get" || parsed->name == "ucx";
  const bool by_pieces = parsed->name == "by_piece";
  if (parsed->name != "chunked" && !may_be_whole && !by_pieces) return unknown(text, "is unknown");
  std::uint64_t chunk_bytes = 0;
  std::uint64_t in_flight = may_be_whole || by_pieces ? 4 : 2;
  const bool one_sided = parsed->name == "put" || parsed->name == "get";
  device_copy by;
  for (const tuning::parameter& p : parsed->parameters) {
    const auto number = tuning::parse_byte_size(p.value);
    const bool too_many = p.name == "in_flight" && number && number.value() > actors::parts_in_flight::most_in_flight;
    if (!number || number.value() == 0 || too_many) return unknown(text, "has an impossible value for " + p.name);
    if (p.name == "chunk_bytes" && !by_pieces) {
      chunk_bytes = number.value();
    } else if (p.name == "in_flight") {
      in_flight = number.value();
    } else if (one_sided && (p.name == "kernel_blocks" || p.name == "streams")) {
      if (number.value() > most_of_a_copy) return unknown(text, "has an impossible value for " + p.name);
      (p.name == "streams" ? by.streams : by.kernel_blocks) = static_cast<std::uint32_t>(number.value());
    } else {
      return unknown(text, "has an unknown parameter " + p.name);
    }
  }
  if (by_pieces) return configs::by_piece(in_flight);
  if (parsed->name == "put") return configs::put(chunk_bytes, in_flight, by);
  if (parsed->name == "get") return configs::get(chunk_bytes, in_flight, by);
  if (parsed->name == "ucx") return configs::ucx(chunk_bytes, in_flight);
  if (chunk_bytes == 0) return unknown(text, "lacks chunk_bytes");
  return configs::chunked(chunk_bytes, in_flight);
}

}  // namespace parley::ops
