#pragma once
/// A value, or the problem because of which there is no value. `tuning` depends on no other folder, so it has its own small result type;
/// actors turn a `problem` into an `error` and add the op and the rank.
///
///     outcome<config_identity> parsed = parse_config_id("chunked(chunk_bytes=262144 in_flight=4)");
///     if (!parsed) return parsed.reason();   // pass it on as a value ...
///     use(parsed.value());                   // ... or let it throw `invalid` when there is none
///
/// Nothing here waits, so there is nothing to cancel.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace parley::tuning {

enum class fault : std::uint8_t {
  malformed,           ///< text or values in a wrong format
  empty,               ///< a list that needs at least one element has none
  duplicate,           ///< a name occurs twice
  digest_collision,    ///< two different configs with one digest
  too_many,            ///< a limit is exceeded
  default_mismatch,    ///< two participants declare different defaults
  role_conflict,       ///< a role that must be filled once is filled twice, or not at all
  validator_mismatch,  ///< a results file belongs to another version, machine or world
};

/// `malformed`, `empty`, ...: the name that texts and JSON use.
std::string_view name(fault kind) noexcept;

struct problem {
  fault kind;
  std::string text;  ///< a whole sentence: what, where, and what to do
};

/// Thrown by `outcome::value` if there is no value.
class invalid : public std::runtime_error {
 public:
  explicit invalid(problem p) : std::runtime_error(p.text), problem_(std::move(p)) {}
  const problem& reason() const noexcept { return problem_; }

 private:
  problem problem_;
};

template <class T>
class [[nodiscard]] outcome {
 public:
  outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}    // NOLINT(google-explicit-constructor)
  outcome(problem why) : state_(std::in_place_index<1>, std::move(why)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const noexcept { return state_.index() == 0; }
  const T& value() const& {
    if (!*this) throw invalid(reason());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    if (!*this) throw invalid(reason());
    return std::move(*std::get_if<0>(&state_));
  }
  const T* operator->() const { return &value(); }
  const problem& reason() const { return std::get<1>(state_); }

 private:
  std::variant<T, problem> state_;
};

}  // namespace parley::tuning
