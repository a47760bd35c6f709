#pragma once
/// What every config is, whatever it moves: a canonical identity with its text and digest, and whether this rank can run it.
/// `paired_config` (config.hpp) and `group_config` (group_config.hpp) add the implementations, one per role.
///
///     class halves final : public paired_config {
///      public:
///       halves() : paired_config({.name = "halves", .wire_class = "halves"}) {}
///       …
///     };
///
/// One object serves all invocations, several at once: it must not keep state.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/constraint.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

/// Which of an op's configs a rank can run, one answer per config. Asked on each rank for itself, once, when the op is declared
/// (capability.hpp).
using capability_function = std::function<std::vector<bool>(runtime::rank_id self)>;

class op_config {
 public:
  virtual ~op_config() = default;
  op_config(const op_config&) = delete;
  op_config& operator=(const op_config&) = delete;

  /// Whether this rank can run it; an error says why not, and keeps it out of the candidates.
  virtual runtime::result<> available() const { return {}; }

  /// What it needs of a rank's machine, by names such as `sm_90` or `ipc` (machine.hpp): a rank that lacks one of them, or is told to do
  /// without it, cannot run it. Its own name counts as one.
  virtual std::vector<std::string> requirements() const { return {}; }

  /// What it is for calls of so many bytes: those of an op's configs that answer alike do the same there, and are one candidate, under the
  /// name of the first. `chunked` with one chunk sends one message, as `direct` does. Otherwise nothing is like it.
  virtual std::string shape(std::uint64_t) const { return id(); }

  /// What it costs besides time; a user's constraints filter by it before time decides.
  virtual tuning::demands demands() const { return {}; }

  const tuning::config_identity& identity() const noexcept { return identity_; }
  /// `chunked(chunk_bytes=262144 in_flight=2)`
  const std::string& id() const noexcept { return id_; }
  std::uint64_t digest() const noexcept { return digest_; }

 protected:
  /// Throws `bad_argument` when the identity cannot be canonical.
  explicit op_config(tuning::config_identity identity);

 private:
  tuning::config_identity identity_;
  std::string id_;
  std::uint64_t digest_;
};

/// The configs of an op as a catalogue. Throws `bad_argument`, beginning with `title`, when they cannot be one.
tuning::catalogue catalogue_of(std::string_view title, const std::vector<const op_config*>& configs);
template <class Config>
tuning::catalogue catalogue_of(std::string_view title, const std::vector<std::shared_ptr<const Config>>& configs) {
  std::vector<const op_config*> plain;
  for (const auto& c : configs) plain.push_back(c.get());
  return catalogue_of(title, plain);
}

}  // namespace parley::ops
