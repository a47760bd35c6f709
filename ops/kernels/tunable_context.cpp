#include <parley/tunable_context.hpp>

#include <parley/ops/kernels/kernel_device.hpp>

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using tuning::setting;

namespace {

constexpr std::size_t most_lines = 10'000;
constexpr std::uint64_t usual_l2_bytes = std::uint64_t{1} << 20U;
constexpr const char* no_icache_flush =
    "ICACHE_FLUSH_ENABLED: a program cannot flush a CPU's instruction cache, so kernels of the CPU are timed without";

std::uint64_t l2_bytes() noexcept {
  const long found = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return found > 0 ? static_cast<std::uint64_t>(found) : usual_l2_bytes;
}

}  // namespace

tunable_context::tunable_context(runtime::executor& ex, runtime::storage* disk, options o)
    : executor_(ex), disk_(disk), shared_(o.shared), no_file_(o.no_file), environment_(std::move(o.environment)),
      mine_(std::move(o.mine)), now_(environment_.over(mine_)), ordinal_(o.ordinal),
      write_on_exit_(o.write_file_on_exit), unique_(o.unique), spare_folder_(std::move(o.spare_folder)),
      validators_(std::move(o.validators)), soft_validators_(std::move(o.soft_validators)), rules_(std::move(o.rules)),
      tell_(std::move(o.tell)) {
  for (const tuning::validator& v : validators_) static_cast<void>(known_.add(v));
  if (environment_.has(setting::flush_icache) && now_.flush_icache) warn(no_icache_flush);
}

tunable_context::~tunable_context() { write_own_file(); }

void tunable_context::enable_icache_flush(bool on) {
  set([&](auto& s) { s.flush_icache = on; });
  if (on) warn(no_icache_flush);
}

std::uint64_t tunable_context::get_rotating_buffer_size() const noexcept {
  return now_.rotating_buffer_bytes ? *now_.rotating_buffer_bytes : l2_bytes();
}

void tunable_context::enable_family(std::string_view family, bool on) {
  if (on) {
    const auto at = families_off_.find(family);
    if (at != families_off_.end()) families_off_.erase(at);
  } else {
    families_off_.emplace(family);
  }
}

bool tunable_context::is_family_enabled(std::string_view family) const {
  const auto met = families_.find(family);
  return met != families_.end() && met->second ? *met->second : !families_off_.contains(family);
}

const std::vector<tuning::rule>& tunable_context::rules_of(std::string_view op) {
  const auto known = rules_of_.find(op);
  return known != rules_of_.end() ? known->second : rules_of_.emplace(op, rules_.of(op)).first->second;
}

const tuning::rule* tunable_context::rule_for(std::string_view op, std::string_view parameters) {
  const tuning::rule* first = nullptr;
  for (const tuning::rule& r : rules_of(op)) {
    if (!r.fits(parameters, std::nullopt)) continue;
    rules_met_.insert(r.place);
    if (!r.excludes && first == nullptr) first = &r;
  }
  return first;
}

std::string tunable_context::why_left_out(std::string_view kernel, std::string_view parameters, std::string_view id,
                                          std::string_view family) {
  for (const tuning::rule& r : rules_of(kernel)) {
    if (r.excludes_config(id) && r.fits(parameters, std::nullopt)) return r.place + " excludes it";
  }
  return is_family_enabled(family) ? "" : "family " + std::string(family) + " is switched off";
}

void tunable_context::meet_family(const std::string& family) {
  if (!family.empty()) families_.try_emplace(family, environment_.family(family));
}

// ---- files ------------------------------------------------------------------------------------------------------------

void tunable_context::set_filename(std::string name, bool insert_device_ordinal) {
  insert_ordinal_ = insert_device_ordinal;
  renamed_ = !environment_.has(setting::file);
  set([&](auto& s) { s.file = std::move(name); });
}

std::string tunable_context::get_filename() const {
  if (is_shared()) return shared_->own_path();
  // A file name from the environment is the same on all ranks, so the rank's number is added.
  const bool insert = insert_ordinal_ || environment_.has(setting::file);
  return insert ? tuning::name_with_ordinal(now_.file, ordinal_) : now_.file;
}

void tunable_context::open_file() {
  if (disk_ == nullptr || no_file_ || is_shared() || !now_.enabled) return;
  std::string path = get_filename();
  if (path == opened_) return;
  opened_ = std::move(path);
  results_store::options o;
  o.path = opened_;
  o.numbered = false;
  o.validators = validators_;
  o.soft = soft_validators_;
  o.unique = unique_;
  o.spare_folder = spare_folder_;
  o.ex = &executor_;
  own_ = std::make_unique<results_store>(disk_, std::move(o));
  for (const std::string& w : own_->warnings()) warn(w);
  remember(own_->remembered());
}

void tunable_context::write_own_file() {
  if (own_ == nullptr || !write_on_exit_ || learned_.empty()) return;
  tuning::results_file file;
  for (const tuning::validator& v : validators_) static_cast<void>(file.add(v));
  for (const tuning::result_entry& e : learned_) static_cast<void>(file.add(e));
  const std::size_t before = own_->warnings().size();
  const auto written = own_->add(file, superseded_);
  for (std::size_t i = before; i < own_->warnings().size(); ++i) warn(own_->warnings()[i]);
  if (!written && own_->in_use()) warn(written.reason().text());
}

const tuning::result_entry* tunable_context::remembered(std::string_view op, std::string_view parameters) {
  open_file();
  const tuning::result_entry* const known = known_.find(op, parameters);
  if (known != nullptr) asked_for_.insert(std::string(op) + "," + std::string(parameters));
  return known;
}

bool tunable_context::has_asked_for(std::string_view op, std::string_view parameters) const {
  return asked_for_.contains(std::string(op) + "," + std::string(parameters));
}

runtime::result<> tunable_context::read_file(const std::string& name) {
  const std::string path = name.empty() ? get_filename() : name;
  if (disk_ == nullptr) return error{errc::unavailable, path + ": this context was made without a disk"};
  const auto text = disk_->read(path);
  if (!text) return text.reason();
  auto parsed = tuning::parse_results(*text);
  if (!parsed) return error{errc::malformed, path + ": " + parsed.reason().text};
  for (const auto& w : parsed->warnings) warn(path + ":" + std::to_string(w.line) + ": " + w.text);
  if (const auto why = tuning::compare_validators(parsed->file.validators(), validators_, path))
    return error{errc::bad_argument, path + ": " + why->text};
  remember(parsed->file);
  return {};
}

runtime::result<std::string> tunable_context::write_file(const std::string& name) {
  const std::string path = name.empty() ? get_filename() : name;
  if (disk_ == nullptr) return error{errc::unavailable, path + ": this context was made without a disk"};
  if (known_.entries().empty())
    return error{errc::unavailable, path + ": the file is not written, because no kernel has been tuned yet"};
  keep_options how;
  how.superseded = superseded_;
  how.unique = unique_;
  how.spare_folder = spare_folder_;
  auto kept = keep_results(*disk_, path, known_, how);
  if (!kept) return kept.reason();
  for (std::string& w : kept->warnings) warn(std::move(w));
  return kept->path;
}

tuning::results_file tunable_context::get_tuning_results() const { return known_; }

void tunable_context::remember(const tuning::results_file& file) {
  for (const tuning::result_entry& e : file.entries()) static_cast<void>(known_.add(e));
  ++version_;
}

const tuning::result_entry* tunable_context::superseded_before(const tuning::result_entry& now) const {
  const auto of_it = [&](const tuning::result_entry& e) { return e.op == now.op && e.parameters == now.parameters; };
  const auto found = std::find_if(superseded_.begin(), superseded_.end(), of_it);
  return found == superseded_.end() ? nullptr : &*found;
}

void tunable_context::learn(tuning::result_entry entry, decision made) {
  const auto* before = known_.find(entry.op, entry.parameters);
  if (before != nullptr && before->solution != entry.solution) superseded_.push_back(*before);
  const auto same = [&](const tuning::result_entry& e) { return e.op == entry.op && e.parameters == entry.parameters; };
  std::erase_if(learned_, same);
  if (write_on_exit_) {
    open_file();
    if (results_store* const file = is_shared() ? shared_ : own_.get()) {
      file->keep_evidence(entry, std::move(made));
      file->learn(entry, superseded_before(entry));
    }
  }
  static_cast<void>(known_.replace(entry));
  learned_.push_back(std::move(entry));
}

// ---- notes and log ----------------------------------------------------------------------------------------------------

void tunable_context::note_untuned(std::string line) {
  if (std::find(untuned_.begin(), untuned_.end(), line) == untuned_.end()) untuned_.push_back(std::move(line));
}

void tunable_context::note(unsigned verbosity, std::string line) {
  if (now_.verbosity < verbosity) return;
  if (tell_) tell_(line);
  if (log_.size() > most_lines) return;
  if (log_.size() == most_lines)
    line = "there are more than " + std::to_string(most_lines) + " lines; the others are not kept";
  log_.push_back(std::move(line));
}

void tunable_context::warn(std::string text) {
  constexpr std::size_t most = tuning::limits::warnings;
  if (warnings_.size() > most) return;
  if (warnings_.size() == most)
    text = "there are more than " + std::to_string(most) + " warnings; the others are not kept";
  warnings_.push_back(std::move(text));
}

std::shared_ptr<const void> tunable_context::claim(const std::string& kernel) {
  const auto [name, is_free] = claimed_->insert(kernel);
  if (!is_free)
    runtime::raise({errc::bad_argument, "kernel " + kernel + " is declared twice; give each one a name of its own"});
  return {static_cast<const void*>(&*name), [all = claimed_, mine = name](const void*) { all->erase(mine); }};
}

void tunable_context::evict(kernel_device* device) {
  if (device != nullptr)
    return device->evict(now_.rotating_buffer_bytes.value_or(device->cache_bytes()), now_.flush_icache);
  const std::uint64_t bytes = get_rotating_buffer_size();
  if (bytes == 0) return;
  rotating_.resize(bytes);
  constexpr std::size_t line_bytes = 64;
  for (std::size_t i = 0; i < rotating_.size(); i += line_bytes) rotating_[i] = static_cast<std::byte>(i ^ bytes);
}

}  // namespace parley::ops
