#pragma once
/// The TunableOp results file: learned decisions, as text.
///
///     Validator,PARLEY_VERSION,0.1.0
///     activations,16MiB_bf16,chunked(chunk_bytes=262144 in_flight=4),1.262
///     activations,1KiB_bf16,direct,0.0042,thin
///
///     outcome<parsed_results> read = parse_results(text);
///     if (auto why = compare_validators(read->file.validators(), mine)) ...   // reject the whole file, leave it alone
///     if (const result_entry* hit = read->file.find("activations", "16MiB_bf16")) ...
///
/// Fields are split on `,`: operator, parameters, solution, time in ms with 6 significant digits, and `thin` if the solution is based on
/// few repetitions (decide.hpp); other readers of the format ignore that field. Blanks around a field, and the quotation marks that a
/// spreadsheet puts around it, are not part of it. Lines that begin with `#` are remarks and keep their places. Bad lines become warnings
/// with their line numbers, and a file beyond the limits is rejected; no input can do more harm than that. If a key occurs twice, the first
/// entry counts. The caller must handle an unknown solution, with a warning and a miss. `Default,inf`, which other programs write if a
/// search found nothing, pins nothing: it becomes a warning, and is kept like a remark.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

namespace limits {
inline constexpr std::size_t line_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t result_entries = 1'000'000;
inline constexpr std::size_t validators = 256;
inline constexpr std::size_t warnings = 100;  ///< the rest is counted, not listed
inline constexpr std::size_t remarks = 100'000;
}  // namespace limits

/// A solution that people write by hand: it pins c0, even if another config is faster.
inline constexpr std::string_view pinned_default = "Default";

struct validator {
  std::string name;
  std::string value;
  friend bool operator==(const validator&, const validator&) = default;
};

struct result_entry {
  std::string op;
  std::string parameters;
  std::string solution;
  double time_ms = 0;
  bool thin = false;  ///< a later job may refine it
  bool pins_default() const noexcept { return solution == pinned_default; }
  /// True for a kernel, which a rank tunes for itself; the names of all other ops have a `/`.
  bool is_of_kernel() const noexcept { return op.find('/') == std::string::npos; }
  friend bool operator==(const result_entry&, const result_entry&) = default;
};

enum class added : std::uint8_t { yes, already_there };

/// The content of one file, in its order. Times are rounded as they will be written, so that parse(write(x)) == x.
class results_file {
 public:
  outcome<added> add(validator v);
  /// An existing entry for (op, parameters) wins. Returns a `problem` if a field cannot be written.
  outcome<added> add(result_entry entry);
  /// Replaces the entry for the same key, or adds `entry` if there is none.
  outcome<added> replace(result_entry entry);
  const result_entry* find(std::string_view op, std::string_view parameters) const;
  /// All entries whose `op,parameters` begin with `beginning`, in that order; `activations/0>1,` finds those of one op.
  std::vector<const result_entry*> find_all(std::string_view beginning) const;
  /// The solutions of those keys of an op that are nearest to `parameters` (`key_distance`), each once, the nearest first.
  std::vector<std::string> solutions_near(std::string_view op, std::string_view parameters, std::size_t most) const;

  /// Adds text for people, such as `# measured on a Monday`, after everything that was added so far. A remark is only written back. Returns
  /// false if there are too many.
  bool add_remark(std::string line);
  struct remark {
    std::size_t validators = 0;  ///< number of validators before it
    std::size_t entries = 0;
    std::string line;
  };

  const std::vector<remark>& remarks() const noexcept { return remarks_; }
  const std::vector<validator>& validators() const noexcept { return validators_; }
  const std::vector<result_entry>& entries() const noexcept { return entries_; }
  friend bool operator==(const results_file& a, const results_file& b) {
    return a.validators_ == b.validators_ && a.entries_ == b.entries_;
  }

 private:
  std::vector<validator> validators_;
  std::vector<result_entry> entries_;
  std::vector<remark> remarks_;
  std::map<std::string, std::size_t, std::less<>> index_;  ///< "op,parameters" -> place in entries_
};

/// How far two keys are from each other: the sum of |log(a / b)| over their numbers. Infinite if they do not have as many.
double key_distance(std::string_view a, std::string_view b);

struct line_warning {
  std::size_t line = 0;  ///< counts from 1; 0: the file as a whole
  std::string text;
};

struct parsed_results {
  results_file file;
  std::vector<line_warning> warnings;
  std::size_t skipped_lines = 0;  ///< lines that `file` does not have: writing `file` over the text would lose them
};

outcome<parsed_results> parse_results(std::string_view text);
std::string write_results(const results_file& file);

/// Compares both as sets. Returns no problem if they are equal; otherwise the problem names each validator that differs, with both values.
std::optional<problem> compare_validators(std::span<const validator> in_file, std::span<const validator> here,
                                          std::string_view where = "here");

/// True if all validators are the same, apart from those with the names in `soft`.
bool differ_only_in(std::span<const std::string> soft, std::span<const validator> in_file,
                    std::span<const validator> here);
/// A hash of them as a set, the same on every machine.
std::uint64_t validators_digest(std::span<const validator> validators);

/// One key with two different solutions.
struct result_conflict {
  result_entry kept;
  result_entry refused;
};

struct merged_results {
  results_file file;
  std::vector<result_conflict> conflicts;
};

/// All of `existing`, then the entries and remarks that only `more` has. An existing entry wins, unless it equals an entry of `superseded`:
/// then the entry of `more` replaces it. Returns a `problem` if their validators differ.
outcome<merged_results> merge_results(const results_file& existing, const results_file& more,
                                      std::span<const result_entry> superseded = {});

/// The ordinal replaces the first `%d`, or goes before the last `.` of the name, or at its end.
std::string name_with_ordinal(std::string_view file_name, std::uint32_t ordinal);
/// `results.mark.csv`: the name of a related file.
std::string name_with_mark(std::string_view file_name, std::string_view mark);

}  // namespace parley::tuning
