#include <parley/ops/job/results_store.hpp>
#include <parley/transports/files/batch_thread.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::result;
using tuning::results_file;

namespace {

constexpr std::size_t listed_warnings = 3;
constexpr runtime::time_ns batch_ns = 250'000'000;  // from the first result of a batch to its writing

constexpr std::string_view world_validator = "PARLEY_WORLD";

bool empty(const tuning::parsed_results& p) {
  return p.warnings.empty() && p.file.entries().empty() && p.file.validators().empty();
}

/// `results.csv:7: the line has 2 columns instead of at least 3`
std::string located(const std::string& path, const tuning::line_warning& w) {
  return w.line == 0 ? path + ": " + w.text : fmt::format("{}:{}: {}", path, w.line, w.text);
}

/// The new content of a file, or the reason why there is no new content.
struct addition {
  enum class state : std::uint8_t { changed, nothing_new, refused, unreadable };
  state what = state::nothing_new;
  std::string why;
  std::string text;
};

results_file behind_remarks(results_file remarks, const results_file& more) {
  for (const tuning::validator& v : more.validators()) static_cast<void>(remarks.add(v));
  for (const tuning::result_entry& e : more.entries()) static_cast<void>(remarks.add(e));
  return remarks;
}

addition add_to(const result<std::string>& there, const std::string& path, const results_file& more,
                std::span<const tuning::result_entry> superseded) {
  using state = addition::state;
  if (!there && there.code() != errc::unavailable) return {state::unreadable, there.reason().text(), {}};
  if (!there) return {state::changed, {}, tuning::write_results(more)};
  const auto parsed = tuning::parse_results(*there);
  if (!parsed) return {state::refused, path + ": " + parsed.reason().text, {}};
  if (empty(parsed.value())) return {state::changed, {}, tuning::write_results(behind_remarks(parsed->file, more))};
  if (parsed->skipped_lines != 0)
    return {state::refused, fmt::format("{} has {} lines that cannot be read", path, parsed->skipped_lines), {}};
  auto merged = tuning::merge_results(parsed->file, more, superseded);
  if (!merged) return {state::refused, path + ": " + merged.reason().text, {}};
  if (merged->file == parsed->file) return {};
  return {state::changed, {}, tuning::write_results(merged->file)};
}

/// Adds to one file. First reads it without its lock: a run that learned nothing new needs neither the lock nor a writable folder.
addition try_file(runtime::storage& disk, const std::string& path, const results_file& more,
                  std::span<const tuning::result_entry> superseded) {
  addition a = add_to(disk.read(path), path, more, superseded);
  if (a.what != addition::state::changed) return a;
  const auto written = disk.update(path, [&](const result<std::string>& there) -> std::optional<std::string> {
    a = add_to(there, path, more, superseded);
    if (a.what != addition::state::changed) return std::nullopt;
    return std::exchange(a.text, {});
  });
  if (!written) a = {addition::state::unreadable, written.reason().text(), {}};
  return a;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

result<kept_results> keep_apart(runtime::storage& disk, const std::string& path, const results_file& more,
                                const keep_options& o, kept_results kept, const std::string& why) {
  const std::string spare = tuning::name_with_mark(path, fmt::format("unmerged-{:016x}", o.unique));
  std::vector<std::string> places{spare};
  if (!o.spare_folder.empty()) places.push_back(o.spare_folder + "/" + last_part(spare));
  std::string failures = why;
  for (const std::string& place : places) {
    const auto written = disk.replace(place, tuning::write_results(more));
    if (!written) {
      failures += "; " + written.reason().text();
      continue;
    }
    kept.what = kept_results::how::written;
    kept.path = place;
    kept.warnings.push_back(
        fmt::format("{}; the results are in {}: once the problem is fixed, run `parley results merge -o {} {}`", why,
                    place, path, place));
    return kept;
  }
  return error{errc::io, "the results could not be written anywhere: " + failures +
                             "; make room or name another file in PARLEY_RESULTS"};
}

}  // namespace

std::string missing_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code unknown;
  const bool missing = std::filesystem::status(folder, unknown).type() == std::filesystem::file_type::not_found;
  return !folder.empty() && missing ? folder.string() : std::string();
}

std::vector<tuning::validator> without_world(std::vector<tuning::validator> all) {
  std::erase_if(all, [](const tuning::validator& v) { return v.name == world_validator; });
  return all;
}

std::string variant_name(const std::string& path, std::span<const tuning::validator> validators) {
  return tuning::name_with_mark(path, fmt::format("for-{:016x}", tuning::validators_digest(validators)));
}

result<kept_results> keep_results(runtime::storage& disk, const std::string& path, const results_file& more,
                                  const keep_options& o) {
  using state = addition::state;
  kept_results kept;
  kept.path = path;
  if (more.entries().empty()) return kept;
  const std::string variant = variant_name(path, more.validators());
  for (const std::string& place : {path, variant}) {
    const addition a = try_file(disk, place, more, o.superseded);
    if (a.what == state::changed || a.what == state::nothing_new) {
      kept.what = a.what == state::changed ? kept_results::how::written : kept_results::how::nothing_new;
      kept.path = place;
      return kept;
    }
    if (a.what == state::unreadable || place == variant) return keep_apart(disk, path, more, o, std::move(kept), a.why);
    kept.warnings.push_back(fmt::format(
        "{}; the file is left as it is, and new results go to {}: repair the file or move it away, then merge the two",
        a.why, variant));
  }
  return kept;
}

result<> record_untuned(runtime::storage& disk, const std::string& path, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::optional<error> unreadable;
  auto done = disk.update(path, [&](const result<std::string>& there) -> std::optional<std::string> {
    unreadable.reset();
    if (!there && there.code() != errc::unavailable) {
      unreadable = there.reason();
      return std::nullopt;
    }
    std::string text = there ? *there : "";
    const std::size_t before = text.size();
    if (before != 0 && text.back() != '\n') text += '\n';
    for (const std::string& line : lines) {
      const std::string whole = line + "\n";
      if (!text.starts_with(whole) && text.find("\n" + whole) == std::string::npos) text += whole;
    }
    return text.size() == before ? std::nullopt : std::optional(std::move(text));
  });
  if (unreadable) return *unreadable;
  return done;
}

// ---- writing results --------------------------------------------------------------------------------------------------

/// Writes results soon after they are learned. A separate thread writes to a real disk: a write takes long, and the rank's thread may be
/// computing when the process ends. That thread writes one batch at a time and holds `writing` while it does.
class results_store::later final {
 public:
  later(results_store& store, runtime::executor& ex) : store_(store), executor_(ex), alarm_(*this) {}
  later(const later&) = delete;
  later& operator=(const later&) = delete;

  void note(tuning::result_entry entry, const tuning::result_entry* before) {
    {
      const std::lock_guard hold(state_);
      if (before != nullptr && std::find(superseded_.begin(), superseded_.end(), *before) == superseded_.end())
        superseded_.push_back(*before);
      if (!learned_.replace(std::move(entry))) return;
    }
    if (!store_.disk_->may_block()) {
      if (!alarm_.linked()) executor_.arm_in(alarm_, batch_ns);
      return;
    }
    if (const auto asked = writer_.ask(); !asked) {
      const std::lock_guard hold(state_);
      warn("decisions are written only when the rank ends: " + asked.reason().text());
    }
  }
  /// Returns the new warnings of these writes.
  std::vector<std::string> take_warnings() {
    const std::lock_guard hold(state_);
    return std::exchange(warnings_, {});
  }

  std::mutex writing;

 private:
  void write() noexcept {
    try {
      const std::lock_guard one_at_a_time(writing);
      results_file learned;
      std::vector<tuning::result_entry> superseded;
      {
        const std::lock_guard hold(state_);
        learned = learned_;
        superseded = superseded_;
      }
      for (const tuning::validator& v : store_.options_.validators) static_cast<void>(learned.add(v));
      put_away done = store_.put(learned, superseded);
      if (!done.where) done.warnings.push_back(done.where.reason().text());
      const std::lock_guard hold(state_);
      for (std::string& w : done.warnings) warn(std::move(w));
    } catch (const std::exception& e) {  // `add` writes the missing results at the end
      const std::lock_guard hold(state_);
      warnings_.emplace_back(std::string("new decisions are not in their file yet: ") + e.what());
    }
  }

  // Keeps each warning once.
  void warn(std::string text) {
    if (std::find(told_.begin(), told_.end(), text) != told_.end()) return;
    told_.push_back(text);
    warnings_.push_back(std::move(text));
  }

  results_store& store_;
  runtime::executor& executor_;
  runtime::timer_of<&later::write> alarm_;
  std::mutex state_;  // guards all members below, except the writer
  results_file learned_;
  std::vector<tuning::result_entry> superseded_;
  std::vector<std::string> warnings_;
  std::vector<std::string> told_;
  transports::batch_thread writer_{[this] { write(); }, batch_ns};  // last: it ends first, with a write in progress
};

// ---- the store --------------------------------------------------------------------------------------------------------

results_store::results_store(runtime::storage* disk, options o) : disk_(disk), options_(std::move(o)) {
  if (options_.path == no_file) options_.path.clear();
  if (!in_use()) return;
  if (const auto fits = disk_->place_for_files(options_.path); !fits) {
    warnings_.push_back(fits.reason().text() + "; results are neither read nor written");
    options_.path.clear();
    return;
  }
  evidence_.emplace(*disk_, evidence_of(own_path()));
  for_kernels_ = without_world(options_.validators);
  const bool two_kinds = for_kernels_.size() != options_.validators.size();
  const std::string own = own_path();
  for (const std::string& path : {options_.path, own}) {
    read(path, options_.validators);
    read(variant_name(path, options_.validators), options_.validators);
    if (two_kinds) read(variant_name(path, for_kernels_), for_kernels_);
    if (own == options_.path) break;
  }
  for (const tuning::result_entry& lent : borrowed_.entries()) static_cast<void>(remembered_.add(lent));
}

results_store::~results_store() = default;

void results_store::read(const std::string& path, const validators& expected) {
  const auto text = disk_->read(path);
  if (!text) {
    if (text.code() != errc::unavailable) warnings_.push_back(text.reason().what());
    return;
  }
  const auto parsed = tuning::parse_results(*text);
  if (!parsed) {
    warnings_.push_back(path + ": " + parsed.reason().text + "; the file is ignored and kept");
    return;
  }
  if (empty(parsed.value())) return;
  const std::size_t listed = std::min(parsed->warnings.size(), listed_warnings);
  for (std::size_t i = 0; i < listed; ++i) warnings_.push_back(located(path, parsed->warnings[i]));
  if (listed < parsed->warnings.size())
    warnings_.push_back(fmt::format("{}: {} more like this; `parley results check {}` lists them", path,
                                    parsed->warnings.size() - listed, path));
  const auto& theirs = parsed->file.validators();
  if (const auto why = tuning::compare_validators(theirs, expected)) {
    const bool of_kernels = std::ranges::all_of(parsed->file.entries(), &tuning::result_entry::is_of_kernel);
    if (of_kernels && !tuning::compare_validators(theirs, for_kernels_)) {  // for worlds of all sizes
      take_kernels_of(parsed->file);
      return;
    }
    if (tuning::differ_only_in(options_.soft, theirs, expected)) {
      for (tuning::result_entry lent : parsed->file.entries()) {
        lent.thin = true;
        static_cast<void>(borrowed_.add(std::move(lent)));
      }
      warnings_.push_back(path + ": " + why->text +
                          "; PARLEY_SOFT_VALIDATORS or the program allows that, so the results are used and searched "
                          "again; the file is kept");
      return;
    }
    const std::size_t taken = take_kernels_of(parsed->file);
    std::string soft;
    for (const std::string& name : options_.soft) soft += (soft.empty() ? "; only these may differ: " : ", ") + name;
    warnings_.push_back(path + ": " + why->text + soft +
                        (taken == 0
                             ? "; the file is ignored and kept"
                             : fmt::format("; the file is kept and ignored, except for {} results of kernels", taken)));
    return;
  }
  for (const auto& entry : parsed->file.entries()) static_cast<void>(remembered_.add(entry));
}

// Results of kernels do not depend on the number of ranks, because a kernel runs on one rank alone.
std::size_t results_store::take_kernels_of(const results_file& file) {
  if (tuning::compare_validators(without_world(file.validators()), for_kernels_)) return 0;
  std::size_t taken = 0;
  for (const auto& entry : file.entries()) {
    if (!entry.is_of_kernel()) continue;
    static_cast<void>(remembered_.add(entry));
    ++taken;
  }
  return taken;
}

void results_store::learn(tuning::result_entry entry, const tuning::result_entry* before) {
  if (!in_use() || options_.ex == nullptr || entry.pins_default()) return;
  if (later_ == nullptr) later_ = std::make_unique<later>(*this, *options_.ex);
  later_->note(std::move(entry), before);
}

void results_store::keep_evidence(const tuning::result_entry& of, decision d) {
  if (in_use() && !of.pins_default()) evidence_->note(of.op, of.parameters, std::move(d));
}

// A pin stays only in the file in which its owner has written it: a copy in a rank's own file would still apply after its owner removes it.
// Results of another version that are only used until they are decided again do not become results of this version either.
results_file results_store::own_results(const results_file& all) const {
  results_file rest;
  for (const tuning::validator& v : all.validators()) static_cast<void>(rest.add(v));
  for (const tuning::result_entry& e : all.entries()) {
    const auto* const lent = borrowed_.find(e.op, e.parameters);
    if (!e.pins_default() && (lent == nullptr || *lent != e)) static_cast<void>(rest.add(e));
  }
  return rest;
}

result<std::string> results_store::add(const results_file& more, std::span<const tuning::result_entry> superseded) {
  if (!in_use()) return error{errc::unavailable, "no results file was asked for"};
  const results_file learned = own_results(more);
  const auto one_at_a_time = later_ ? std::unique_lock(later_->writing) : std::unique_lock<std::mutex>();
  put_away done = put(learned, superseded);
  if (later_) {
    const std::vector<std::string> before = later_->take_warnings();
    done.warnings.insert(done.warnings.begin(), before.begin(), before.end());
  }
  for (std::string& w : done.warnings) {
    if (std::find(warnings_.begin(), warnings_.end(), w) == warnings_.end()) warnings_.push_back(std::move(w));
  }
  return std::move(done.where);
}

results_store::put_away results_store::put(const results_file& learned,
                                           std::span<const tuning::result_entry> superseded) {
  std::vector<tuning::result_entry> give_way(superseded.begin(), superseded.end());
  give_way.insert(give_way.end(), added_.begin(), added_.end());
  auto kept = keep_results(*disk_, own_path(), learned,
                           {.superseded = give_way, .unique = options_.unique, .spare_folder = options_.spare_folder});
  if (!kept) return {kept.reason(), {}};
  put_away done{kept->path, std::move(kept->warnings)};
  if (kept->path != own_path()) put_kernels(learned, give_way, done.warnings);
  const auto is_new = [this](const tuning::result_entry& e) {
    const auto* const before = remembered_.find(e.op, e.parameters);
    return before == nullptr || *before != e;
  };
  if (kept->what == kept_results::how::written) {
    added_.clear();
    std::copy_if(learned.entries().begin(), learned.entries().end(), std::back_inserter(added_), is_new);
  }
  replace_in_common(learned, superseded, done.warnings);
  if (const auto written = evidence_->write(); !written)
    done.warnings.push_back("the results are kept, but not their evidence: " + written.reason().text());
  return done;
}

// Writes results of kernels to a file for worlds of all sizes, because a rank of another world does not read this world's file.
void results_store::put_kernels(const results_file& learned, std::span<const tuning::result_entry> give_way,
                                std::vector<std::string>& warnings) {
  if (for_kernels_.size() == options_.validators.size()) return;
  results_file kernels;
  for (const tuning::validator& v : for_kernels_) static_cast<void>(kernels.add(v));
  for (const tuning::result_entry& e : learned.entries()) {
    if (e.is_of_kernel()) static_cast<void>(kernels.add(e));
  }
  if (kernels.entries().empty()) return;
  const std::string place = variant_name(own_path(), for_kernels_);
  const addition a = try_file(*disk_, place, kernels, give_way);
  if (a.what == addition::state::refused || a.what == addition::state::unreadable)
    warnings.push_back("results of kernels are kept for worlds of this size only: " + a.why);
}

// Replaces entries of the common file that this run decided differently: ranks read that file first, so the old entries would apply again
// in the next run. Adds no further entries to it, because its owner chooses its contents.
void results_store::replace_in_common(const results_file& learned, std::span<const tuning::result_entry> superseded,
                                      std::vector<std::string>& warnings) {
  if (superseded.empty() || own_path() == options_.path) return;
  const auto there = disk_->read(options_.path);
  const auto parsed = tuning::parse_results(there ? *there : std::string());
  if (!there || !parsed) return;
  results_file instead;
  for (const tuning::validator& v : learned.validators()) static_cast<void>(instead.add(v));
  for (const tuning::result_entry& old : superseded) {
    const auto* const stands = parsed->file.find(old.op, old.parameters);
    const auto* const now = learned.find(old.op, old.parameters);
    if (stands != nullptr && now != nullptr && *stands == old) static_cast<void>(instead.add(*now));
  }
  if (instead.entries().empty()) return;
  const addition a = try_file(*disk_, options_.path, instead, superseded);
  if (a.what == addition::state::refused || a.what == addition::state::unreadable)
    warnings.push_back(options_.path + " keeps " + std::to_string(instead.entries().size()) +
                       " results that differ from the decisions of this run: " + a.why);
}

}  // namespace parley::ops
