#pragma once
/// A library of collectives for real processes of one host, whose calls carry no header: sums over shared memory. Each config lays out the
/// words in its own order, so members that run different configs for one call get wrong sums.
///
///     shared_sums memory(path, members);                     // the last member who opens the file removes its name
///     op.communicator     = memory.user(2);                          // member 2's; results come `depth` - 1 calls later
///     op.rehearse = memory.rehearsals(2);
///     op.configs  = {sums_by("forward", 1, costs), sums_by("by_threes", 3, costs)};
///
/// A member may be up to `depth` - 1 calls ahead of the others, as with libraries that buffer: call n returns the sums of call
/// n - depth + 1, or zeros if there is no such call.
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

class shared_sums : public std::enable_shared_from_this<shared_sums> {
 public:
  static constexpr std::size_t most_members = 8;
  static constexpr std::size_t words = 64;
  static constexpr std::uint64_t depth = 256;  ///< of the user's communicator
  using sum_words = std::array<std::uint64_t, words>;

  shared_sums(const std::string& path, std::size_t members) : members_(members) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ::ftruncate(file, sizeof(layout)) != 0) runtime::raise({runtime::errc::io, "no file " + path});
    void* const at = ::mmap(nullptr, sizeof(layout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (at == MAP_FAILED) runtime::raise({runtime::errc::io, "cannot map " + path});
    here_ = static_cast<layout*>(at);
    if (here_->opened.fetch_add(1) + 1 == members) ::unlink(path.c_str());
  }
  shared_sums(const shared_sums&) = delete;
  shared_sums& operator=(const shared_sums&) = delete;
  ~shared_sums() { ::munmap(here_, sizeof(layout)); }

  /// A word of this member that the others can read, also while it computes.
  std::atomic<std::uint64_t>& told_by(std::size_t member) { return here_->told[member]; }

 private:
  friend class shared_communicator;
  friend class shared_source;
  // There are twice as many slots as the depth, so that a member that is ahead does not overwrite a slot that another one still reads.
  struct region {
    std::array<std::atomic<std::uint64_t>, most_members> written;  // calls of each member
    std::array<std::array<sum_words, most_members>, 2 * depth> slots;
  };
  struct layout {
    std::atomic<std::size_t> opened;
    std::atomic<std::uint64_t> regions;  // regions given out, besides the user's
    std::array<std::atomic<std::uint64_t>, most_members> told;
    std::array<region, 16> all;
  };
  layout* here_;
  std::size_t members_;
};

/// One member's handle.
class shared_communicator final : public ops::communicator {
 public:
  shared_communicator(std::shared_ptr<shared_sums> memory, std::uint64_t number, std::size_t member)
      : memory_(std::move(memory)), here_(memory_->here_->all.at(number)), member_(member),
        depth_(number == 0 ? shared_sums::depth : 1), ahead_(depth_ - 1) {}
  void abort() noexcept override { aborted_ = true; }
  bool aborted() const noexcept override { return aborted_; }

  /// Writes the words of the next call in the order of this stride. Returns the number of the call.
  std::uint64_t write(std::span<const std::byte> data, std::size_t stride) {
    const std::uint64_t call = next_++;
    auto& to = here_.slots[call % here_.slots.size()][member_];
    for (std::size_t i = 0; i < count(data.size()); ++i)
      std::memcpy(&to[i * stride % shared_sums::words], data.data() + i * sizeof to[0], sizeof to[0]);
    strides_[call % here_.slots.size()] = stride;
    here_.written[member_].store(call + 1, std::memory_order_release);
    return call;
  }
  /// Limits how far this member may be ahead of the others.
  void most_ahead(std::uint64_t calls) { ahead_ = std::min(calls, depth_ - 1); }

  /// True if all members have written the words that this call sums, and none is too far behind.
  bool can_read(std::uint64_t call) const {
    return std::all_of(here_.written.begin(), here_.written.begin() + static_cast<std::ptrdiff_t>(memory_->members_),
                       [&](const auto& w) { return w.load(std::memory_order_acquire) + ahead_ > call; });
  }
  void read(std::uint64_t call, std::span<std::byte> data) const {
    std::fill(data.begin(), data.end(), std::byte{});
    if (call + 1 < depth_) return;
    const std::size_t slot = (call + 1 - depth_) % here_.slots.size();
    for (std::size_t i = 0; i < count(data.size()); ++i) {
      std::uint64_t sum = 0;
      for (std::size_t m = 0; m < memory_->members_; ++m)
        sum += here_.slots[slot][m][i * strides_[slot] % shared_sums::words];
      std::memcpy(data.data() + i * sizeof sum, &sum, sizeof sum);
    }
  }

 private:
  static std::size_t count(std::size_t bytes) {
    return std::min(bytes / sizeof(std::uint64_t), std::size_t{shared_sums::words});
  }
  std::shared_ptr<shared_sums> memory_;
  shared_sums::region& here_;
  std::size_t member_;
  std::uint64_t depth_;
  std::uint64_t ahead_;
  std::uint64_t next_ = 0;
  std::array<std::size_t, 2 * shared_sums::depth> strides_{};
  bool aborted_ = false;
};

class shared_source final : public ops::communicator_source {
 public:
  shared_source(std::shared_ptr<shared_sums> memory, std::size_t member, bool beside)
      : memory_(std::move(memory)), member_(member), beside_(beside) {}
  std::vector<std::byte> make_id() override {
    const std::uint64_t number = memory_->here_->regions.fetch_add(1) + 1;
    if (number >= memory_->here_->all.size()) runtime::raise({runtime::errc::unavailable, "no more communicators"});
    return {static_cast<std::byte>(number)};
  }
  runtime::task<std::shared_ptr<ops::communicator>> connect(std::vector<std::byte> id) override {
    co_return std::make_shared<shared_communicator>(memory_, static_cast<std::uint64_t>(id.at(0)), member_);
  }
  bool beside_calls() const noexcept override { return beside_; }

 private:
  std::shared_ptr<shared_sums> memory_;
  std::size_t member_;
  bool beside_;
};

/// The runs of this process, and the time that each of them takes.
struct sums_book {
  runtime::time_ns call_ns = 500'000;
  std::map<std::string, runtime::time_ns> rehearsal_ns{};
  struct entry {
    std::uint64_t invocation;
    std::uint64_t digest;
  };
  std::vector<entry> calls{};                          ///< of the user
  std::map<std::uint64_t, std::uint32_t> rehearsed{};  ///< successful rehearsals, by digest
};

class sums_by final : public ops::symmetric_config {
 public:
  /// The stride must be odd, so that each word has its own place.
  sums_by(const std::string& name, std::size_t stride, std::shared_ptr<sums_book> book)
      : symmetric_config({.name = name, .wire_class = name}), name_(name), stride_(stride), book_(std::move(book)) {}

  runtime::task<> run(ops::symmetric_call call, std::span<std::byte> data) const override {
    auto& over = static_cast<shared_communicator&>(*call.communicator);
    const runtime::scope& here = co_await runtime::this_scope;
    const bool is_call = call.on == ops::symmetric_call::stream::user;
    if (is_call) book_->calls.push_back({call.invocation, digest()});
    const std::uint64_t number = over.write(data, stride_);
    co_await rest(here.where(), is_call ? book_->call_ns : book_->rehearsal_ns[name_]);
    while (!over.can_read(number)) {
      co_await rest(here.where(), 50'000);
      if (over.aborted()) runtime::raise({runtime::errc::io, "the communicator was aborted"});
    }
    over.read(number, data);
    if (!is_call) ++book_->rehearsed[digest()];
  }

 private:
  static runtime::task<> rest(runtime::executor& ex, runtime::time_ns span) {
    auto slept = co_await runtime::sleep_until(ex.deadline_in(span));
    if (!slept) runtime::raise(slept.reason());
  }
  std::string name_;
  std::size_t stride_;
  std::shared_ptr<sums_book> book_;
};

inline std::vector<ops::symmetric_config_ptr> three_orders(const std::shared_ptr<sums_book>& book) {
  return {std::make_shared<sums_by>("forward", 1, book), std::make_shared<sums_by>("by_threes", 3, book),
          std::make_shared<sums_by>("by_fives", 5, book)};
}

}  // namespace parley::tests
