#pragma once
/// The common part of all configs: a canonical identity with its text and digest, and whether this rank can run the config.
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

/// Returns one value per config of an op: true if the rank can run the config. Each rank calls the function once for itself, when it
/// declares the op (capability.hpp).
using capability_function = std::function<std::vector<bool>(runtime::rank_id self)>;

class op_config {
 public:
  virtual ~op_config() = default;
  op_config(const op_config&) = delete;
  op_config& operator=(const op_config&) = delete;

  /// Succeeds if this rank can run the config. An error says why it cannot, and keeps the config out of the candidates.
  virtual runtime::result<> available() const { return {}; }

  /// The capabilities that a rank's machine must have, such as `sm_90` or `ipc` (machine.hpp). If a rank lacks one of them, or its mask
  /// hides one, it cannot run the config. The config's own name counts as one of them.
  virtual std::vector<std::string> requirements() const { return {}; }

  /// Describes what the config does for calls of so many bytes. If configs of an op return the same text, they do the same for that size
  /// and are one candidate, named after the first. For example, `chunked` with one chunk sends one message, as `direct` does. The default
  /// text is the config's own id, which no other config shares.
  virtual std::string shape(std::uint64_t) const { return id(); }

  /// Its costs other than time. The user's constraints filter configs by these costs before time decides.
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

/// Makes a catalogue of an op's configs. Throws `bad_argument`, with a text that begins with `title`, if they cannot be one.
tuning::catalogue catalogue_of(std::string_view title, const std::vector<const op_config*>& configs);
template <class Config>
tuning::catalogue catalogue_of(std::string_view title, const std::vector<std::shared_ptr<const Config>>& configs) {
  std::vector<const op_config*> plain;
  for (const auto& c : configs) plain.push_back(c.get());
  return catalogue_of(title, plain);
}

}  // namespace parley::ops
