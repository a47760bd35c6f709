#pragma once
/// A job without processes: each rank has a real `membership`, and news of a death, a return or a restart can arrive in every order. The
/// search (tests/small_scope/explorer.hpp) chooses what happens next.
///
///     news_setup s;
///     s.plots = {{{fate::is_killed, 2}, {fate::comes_back, 2}}, {{fate::returns, 1}}};   // each in order; between them, any order
///     findings f = search([=] { return std::make_unique<news_world>(s); }, {.by_state = true}).run();
///
/// The world has the parts of a real job and no others: rank 0 with a connection to each rank (messages arrive in order and are never
/// lost), a page for each host, a heart for each rank, a link between each pair of ranks, and a loop for each rank, to which hearts and
/// links post. In a real job, ops/job/run.cpp turns all this into evidence. Each step below names the function there that it stands for.
///
/// The letters at the checks are those of news_orders.cpp.
#include <parley/tests/small_scope/explorer.hpp>

#include <parley/actors/membership/losses.hpp>
#include <parley/actors/membership/membership.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

using actors::departure;
using actors::effect;
using actors::evidence;
using actors::losses;
using actors::membership;
using actors::peer_report;
using actors::standing;
using runtime::root_cause;

enum class fate : std::uint8_t {
  is_killed,
  is_stopped,
  goes_on,        // after it was stopped
  comes_back,     // as a new process
  is_replaced,    // by a new process, while the older one is stopped
  older_goes_on,  // the process that was replaced
  returns,
  ends_with_error,
  ends_because,  // because of the first loss that its ops were told of
  cuts,          // aborts a message to or from the other rank
  suspects,      // an op declares the other rank dead
};
struct happening {
  fate what = fate::is_killed;
  rank_id who = 0;
  rank_id other = 0;
};

struct news_setup {
  static constexpr std::size_t most_ranks = 4;
  rank_id ranks = 3;
  std::array<std::uint8_t, most_ranks> host{};
  bool has_page = true;
  /// How long a rank that ends with an error waits: until rank 0 has told the others, or not at all.
  enum class farewell : std::uint8_t { until_heard, in_haste } farewell = farewell::until_heard;
  std::vector<std::vector<happening>> plots{};
  membership::rules rules = &actors::next;
  std::optional<rank_id> deaf{};  ///< receives no news: used where its news does not matter and would add many orders
  bool ignores_lives = false;     ///< broken: posts about an older process count for the newer one in its place
  bool looks_for_news = false;    ///< a call that fails asks for news first, at any moment (`services::hear_news`)
};

class news_world final : public scenario {
 public:
  explicit news_world(news_setup s) : setup_(std::move(s)), done_(setup_.plots.size()) {
    for (rank_id r = 0; r < setup_.ranks; ++r) processes_.push_back(std::make_unique<process>(*this, r, 0));
    for (rank_id r = 0; r < setup_.ranks; ++r) zero_.seat[r] = processes_[r].get();
  }

  std::vector<event> possible() override {
    std::vector<event> all;
    const auto may = [&](kind k, std::size_t a, std::size_t b = 0) {
      const auto id = static_cast<std::uint32_t>(static_cast<std::size_t>(k) << 16U | a << 8U | b);
      all.push_back({.name = id, .id = id});
    };
    for (std::size_t i = 0; i < setup_.plots.size(); ++i) {
      if (done_[i] < setup_.plots[i].size() && can(setup_.plots[i][done_[i]])) may(kind::plot, i);
    }
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      const process& at = *processes_[p];
      if (zero_turns() && zero_.seat[at.self] == &at && at.self != 0) {
        if (!at.says.empty()) may(kind::zero_reads, p);
        if (at.says.empty() && at.over()) may(kind::zero_sees_end, p);
      }
      const bool is_let_go = at.let_go || processes_[0]->over() || setup_.farewell == news_setup::farewell::in_haste;
      if (at.turns() && at.parts && is_let_go) may(kind::ends, p);
      if (!at.takes_part()) continue;
      if (!at.has_heart) may(kind::heart_begins, p);
      if (setup_.deaf == at.self) continue;
      if (at.listens()) {
        if (!at.hears.empty()) may(kind::reads, p);
        if (at.hears.empty() && processes_[0]->over() && !at.knows_end_of_zero) may(kind::loses_zero, p);
      }
      if (!at.notices.empty()) may(kind::notice, p);
      if (!at.posts.empty()) may(kind::post, p);
      if (!at.goodbyes.empty()) may(kind::goodbye_over, p);
      if (setup_.looks_for_news && at.has_trouble() && !at.has_looked) may(kind::looks, p);
      for (rank_id x = 0; x < setup_.ranks; ++x) {
        if (x == at.self) continue;
        if (at.ties[x] == tie::closing || (at.ties[x] == tie::up && is_broken(at, x))) may(kind::tie_ends, p, x);
        if (heart_has_news(at, x)) may(kind::beat, p, x);
      }
      if (!at.why_fenced().empty()) may(kind::fenced_beat, p);
    }
    return all;
  }

  void happen(const event& e) override {
    const std::size_t a = e.id >> 8U & 0xffU;
    const auto b = static_cast<rank_id>(e.id & 0xffU);
    switch (static_cast<kind>(e.id >> 16U)) {
      case kind::plot: return befall(setup_.plots[a][done_[a]++]);
      case kind::zero_reads: return zero_reads(*processes_[a]);
      case kind::zero_sees_end: return zero_sees_end(*processes_[a]);
      case kind::reads: return processes_[a]->read();
      case kind::loses_zero: processes_[a]->knows_end_of_zero = true; return processes_[a]->on_dead(0);
      case kind::notice: return processes_[a]->read_notice();
      case kind::post: return processes_[a]->run_post();
      case kind::goodbye_over: return processes_[a]->end_goodbye();
      case kind::ends: return end(*processes_[a], page_entry::left);
      case kind::looks: return processes_[a]->look_for_news();
      case kind::tie_ends: return processes_[a]->lose_tie(b);
      case kind::beat: return processes_[a]->beat(b);
      case kind::heart_begins: return processes_[a]->begin_heart();
      case kind::fenced_beat: return static_cast<void>(processes_[a]->peers.see_whether_fenced());
    }
  }

  std::string describe(const event& e) override {
    const std::size_t a = e.id >> 8U & 0xffU;
    const std::string b = std::to_string(e.id & 0xffU);
    const auto who = [&] {
      return "rank " + std::to_string(processes_[a]->self) + (processes_[a]->life == 0 ? "" : " (newer)");
    };
    switch (static_cast<kind>(e.id >> 16U)) {
      case kind::plot: {
        const happening& h = setup_.plots[a][done_[a]];
        constexpr std::array<const char*, 11> words{"is killed",
                                                    "is stopped",
                                                    "goes on",
                                                    "comes back",
                                                    "is replaced",
                                                    "goes on as the older one",
                                                    "returns",
                                                    "ends with an error",
                                                    "ends because of a loss",
                                                    "cuts",
                                                    "suspects"};
        return "rank " + std::to_string(h.who) + " " + words[static_cast<std::size_t>(h.what)] +
               (h.what >= fate::cuts ? " rank " + std::to_string(h.other) : "");
      }
      case kind::zero_reads: return "rank 0 reads a word of " + who();
      case kind::zero_sees_end: return "rank 0 sees that the connection of " + who() + " is over";
      case kind::reads: return who() + " reads a word of rank 0";
      case kind::loses_zero: return who() + " sees that its connection to rank 0 is over";
      case kind::notice: return who() + " reads a notice of another host";
      case kind::post: return who() + " runs what was posted";
      case kind::goodbye_over: return who() + " has waited for last messages";
      case kind::ends: return who() + " is gone after its farewell";
      case kind::looks: return who() + " looks for news, as a call fails";
      case kind::tie_ends: return who() + ": its link to rank " + b + " ends";
      case kind::beat: return who() + ": its heart holds rank " + b + " dead";
      case kind::heart_begins: return who() + ": its heart begins";
      case kind::fenced_beat: return who() + ": its heart finds the verdict on itself";
    }
    return {};
  }

  // D7 to D9: nothing more can happen, so each rank must have come to the true state.
  void finish() override {
    for (const auto& y : processes_) {
      if (!y->takes_part() || setup_.deaf == y->self) continue;
      if (!y->why_fenced().empty())
        breaks("D4: rank " + std::to_string(y->self) + " has not found out that it is held dead");
      for (rank_id x = 0; x < setup_.ranks; ++x) {
        if (x != y->self) check_settled(*y, x);
      }
    }
  }
  std::string outcome() const override {
    std::string all;
    for (const auto& y : processes_) {
      if (y->fences != 0) all += std::to_string(y->self) + ":fenced ";
      if (!y->takes_part()) continue;
      all += std::to_string(y->self) + ":";
      for (rank_id x = 0; x < setup_.ranks; ++x) {
        if (x == y->self) continue;
        all += (all.ends_with(':') ? "" : ",") + std::string(name(y->peers.of(x)));
      }
      all += " ";
    }
    if (!all.empty()) all.pop_back();
    return "[" + all + "]";
  }
  std::uint64_t state() const override {
    digest d;
    for (const std::size_t n : done_) d.add(n);
    for (rank_id r = 0; r < setup_.ranks; ++r) {
      d.add(zero_.seat[r] == nullptr ? 9 : zero_.seat[r]->life);
      d.add(zero_.gone[r] ? zero_.gone[r]->bits() : 0);
      d.add(zero_.life[r]);
      d.add(page_[r].bits());
    }
    for (const auto& p : processes_) p->add_to(d);
    return d.value;
  }

 private:
  enum class kind : std::uint8_t {
    plot,
    zero_reads,
    zero_sees_end,
    reads,
    loses_zero,
    notice,
    post,
    goodbye_over,
    ends,
    looks,
    tie_ends,
    beat,
    heart_begins,
    fenced_beat,
  };
  enum class tie : std::uint8_t { up, closing, down };
  enum class is : std::uint8_t { running, stopped, killed, gone };
  struct digest {
    std::uint64_t value = 1;
    void add(std::uint64_t n) { value = mix(value ^ n) + 0x9e3779b97f4a7c15U; }
  };
  /// A message of the rendezvous, in either direction.
  struct word {
    enum what : std::uint8_t { lost, left, restarted } is = lost;
    rank_id who = 0;
    std::uint8_t life = 0;
    bool in_peace = false;
    rank_id because_of = 0;
    std::uint64_t bits() const {
      return 1U + is + who * 8U + life * 64U + (in_peace ? 1024U : 0U) + because_of * 2048U;
    }
  };
  /// An item that a link or an op posts to its rank's loop. (Items of a heart are not delayed here: the heart itself may be late.)
  struct post {
    enum what : std::uint8_t { link, found } is = link;
    rank_id who = 0;
    std::uint8_t life = 0;  // `on_loop_of`: the process that was in that place at the time
  };
  struct page_entry {
    enum what : std::uint8_t { alive, left, dead } is = alive;
    std::uint8_t life = 0;
    std::uint8_t order = 0;
    std::uint64_t bits() const { return is + life * 4U + order * 64U; }
  };
  struct told_of {
    rank_id who;
    std::uint8_t life;
    departure how;
    rank_id began_with;
    bool unheard;  // rank 0 had not yet said how the rank left
  };

  struct process final : membership::outside {
    process(news_world& w, rank_id r, std::uint8_t l)
        : world(w), self(r), life(l), root(r), peers(w.setup_.ranks, r, *this, w.setup_.rules), gone(r, true) {
      if (life != 0) {
        for (rank_id x = 0; x < w.setup_.ranks; ++x) known[x] = w.zero_.life[x];
      }
      known[r] = l;
    }

    /// `start_heart`: a process that comes back calls it once it knows the others.
    void begin_heart() {
      has_heart = true;
      if (world.page_[self].life < life) world.page_[self] = {page_entry::alive, life, 0};
    }

    bool over() const { return state == is::killed || state == is::gone; }
    bool turns() const { return state == is::running; }
    /// The process can still act.
    bool takes_part() const { return turns() && !parts; }
    bool listens() const { return self != 0 && !parts; }
    bool has_trouble() const {
      return std::any_of(ties.begin(), ties.end(), [](tie t) { return t != tie::up; });
    }
    bool is_beside(rank_id x) const { return world.setup_.host[x] == world.setup_.host[self]; }
    bool watches(rank_id x) const { return world.setup_.has_page && has_heart && x != self && is_beside(x); }
    bool spans_hosts() const {
      for (rank_id x = 0; x < world.setup_.ranks; ++x) {
        if (!is_beside(x)) return true;
      }
      return false;
    }

    // ---- evidence, as job::state passes it in -----------------------------------------------------------------------

    void hear_of_death(rank_id dead, evidence of) {
      peers.hear(dead, of, {"seen", {}});
      if (dead == 0 && peers.of(0) == standing::lost) lose_rank_0();
    }
    void on_dead(rank_id dead) { hear_of_death(dead, evidence::said_dead); }
    void on_left(rank_id left, bool in_peace, rank_id because_of) {
      if (in_peace) heard_bye[left] = true;
      const root_cause why{because_of, in_peace ? "" : " ended"};
      peers.hear(left, in_peace ? evidence::said_goodbye : evidence::said_error, {why.what, why});
      if (left == 0) lose_rank_0();
    }
    void lose_rank_0() {
      without_rank_0 = true;
      tell_other_hosts();
    }
    void tell_other_hosts() {
      if (!spans_hosts() || !world.setup_.has_page || !has_heart || !without_rank_0) return;
      int before = 0;
      for (rank_id x = 0; x < self; ++x) {
        before += watches(x) && world.page_[x].is == page_entry::alive && world.page_[x].life == known[x];
      }
      if (before > 1) return;
      for (const auto& [dead, why] : verdicts()) {
        if (peers.of(dead) != standing::lost || std::exchange(has_noticed[dead], known[dead] + 1) == known[dead] + 1)
          continue;
        for (const auto& to : world.processes_) {
          if (!is_beside(to->self) && world.setup_.deaf != to->self && !to->over() && known[to->self] == to->life &&
              ties[to->self] == tie::up)
            to->notices.push_back({word::lost, dead, known[dead]});
        }
      }
    }
    void read() {
      const word w = take(hears);
      if (w.is == word::left) {
        if (w.who == 0) knows_end_of_zero = true;  // nobody watches the connection to rank 0 any more
        return on_left(w.who, w.in_peace, w.because_of);
      }
      if (w.is == word::lost) return on_dead(w.who);
      on_restarted(w.who, w.life);
    }
    void on_restarted(rank_id who, std::uint8_t newer) {
      coming[who] = newer;
      peers.hear(who, evidence::newer_process);
    }
    void read_notice() {
      const word w = take(notices);
      if (std::max(known[w.who], coming[w.who]) == w.life) on_dead(w.who);
    }
    /// Reads every message of rank 0 that has arrived. Between hosts a message may still be in flight.
    void poll() {
      if (self == 0) return world.zero_polls();
      while (listens() && is_beside(0) && !hears.empty()) read();
    }
    void run_post() {
      const post p = take(posts);
      poll();
      if (known[p.who] != p.life && !world.setup_.ignores_lives) return;
      if (p.is == post::found) return hear_of_death(p.who, evidence::found_dead);
      const bool replaced = peers.of(p.who) == standing::replaced;
      peers.hear(p.who, cut[p.who] && !replaced ? evidence::link_cut : evidence::link_broke,
                 {"its connection broke", {}});
    }
    void look_for_news() {
      has_looked = true;
      if (fences != 0 || !why_fenced().empty()) return;
      poll();
      peers.hear_verdicts();
      for (rank_id x = 0; x < world.setup_.ranks; ++x) {
        if (cut[x]) peers.hear(x, evidence::link_cut);
      }
    }
    void end_goodbye() {
      const auto [who, of] = take(goodbyes);
      if (known[who] == of || world.setup_.ignores_lives) peers.hear(who, evidence::goodbye_is_over);
    }
    void lose_tie(rank_id x) {
      ties[x] = tie::down;
      posts.push_back({post::link, x, known[x]});
    }
    void beat(rank_id x) {
      world.judge(x, known[x]);
      reported[x] = true;
      for (const auto& [dead, why] : verdicts()) hear_of_death(dead, evidence::fell_silent);
      tell_other_hosts();
    }

    // ---- the effects -------------------------------------------------------------------------------------------------

    void close_link(rank_id x) noexcept override {
      // For a link that is closed for good, the time at which it is down makes no difference.
      if (ties[x] == tie::up) ties[x] = world.comes_back(x) ? tie::closing : tie::down;
    }
    bool link_is_down(rank_id x) const noexcept override { return ties[x] == tie::down; }
    void await_goodbye(rank_id x) override { goodbyes.emplace_back(x, known[x]); }
    void tell_ops(rank_id x, effect how, const peer_report& what) noexcept override {
      const auto* l = how == effect::tell_ended      ? gone.add_ended(x, what.began_with, 0)
                      : how == effect::tell_returned ? gone.add(x, {}, departure::returned, 0)
                      : how == effect::tell_cut_off  ? gone.add(x, what.why, departure::cut_off, 0)
                      : how == effect::tell_vanished ? gone.add(x, what.why, departure::vanished, 0)
                                                     : gone.add(x, what.why, departure::died, 0);
      world.check_told(*this, x, how, what, l);
    }
    void publish_death(rank_id x) noexcept override {
      world.check_published(*this, x);
      if (watches(x)) world.judge(x, known[x]);
    }
    std::vector<std::pair<rank_id, std::string>> verdicts() const override {
      std::vector<std::pair<rank_id, std::string>> all;
      for (rank_id x = 0; x < world.setup_.ranks; ++x) {
        if (watches(x) && world.page_[x].is == page_entry::dead && world.page_[x].life == known[x])
          all.emplace_back(x, "verdict");
      }
      std::sort(all.begin(), all.end(),
                [&](const auto& a, const auto& b) { return world.page_[a.first].order < world.page_[b.first].order; });
      return all;
    }
    void pass_on(rank_id dead, const std::string&) override {
      if (!spans_hosts()) return;
      if (self == 0) return world.zero_hears_of_death(dead, known[dead]);
      if (listens() && !knows_end_of_zero) says.push_back({word::lost, dead, known[dead]});
    }
    bool take_in(rank_id x) override {
      if (ties[x] != tie::down) world.breaks("D6: a newer process is taken in while the link has the one before");
      if (coming[x] <= known[x]) world.breaks("D6: a newer process is taken in twice");
      known[x] = coming[x];
      ties[x] = tie::up;
      cut[x] = reported[x] = heard_bye[x] = false;
      gone.forget(x);
      return true;
    }
    std::string why_fenced() const override { return has_heart && is_held_dead() ? "the others hold it dead" : ""; }
    bool is_held_dead() const {
      const page_entry& mine = world.page_[self];
      return world.setup_.has_page && (mine.life > life || (mine.life == life && mine.is == page_entry::dead));
    }
    void end_fenced(const std::string&) noexcept override {
      for (rank_id x = 0; x < world.setup_.ranks; ++x) {
        if (x != self) ties[x] = tie::down;
      }
      if (++fences > 1) world.breaks("D4: rank " + std::to_string(self) + " ends its ops as fenced more than once");
      world.part(*this, self);  // its program ends with that error
    }

    void add_to(digest& d) const {
      d.add(static_cast<std::uint64_t>(state) | (parts ? 8U : 0U) | (let_go ? 16U : 0U) | (has_heart ? 32U : 0U) |
            (knows_end_of_zero ? 64U : 0U) | (without_rank_0 ? 128U : 0U) | (has_looked ? 256U : 0U) |
            static_cast<std::uint64_t>(fences) << 12U | static_cast<std::uint64_t>(root) << 16U | self << 20U |
            static_cast<std::uint64_t>(life) << 24U);
      if (!takes_part() && state != is::stopped) {
        for (rank_id x = 0; x < world.setup_.ranks; ++x) d.add(static_cast<std::uint64_t>(ties[x]) | known[x] * 4U);
        for (const word& w : says) d.add(w.bits());
        return;
      }
      for (rank_id x = 0; x < world.setup_.ranks; ++x) {
        d.add(static_cast<std::uint64_t>(peers.of(x)) | static_cast<std::uint64_t>(ties[x]) << 4U |
              (cut[x] ? 64U : 0U) | (reported[x] ? 128U : 0U) | (heard_bye[x] ? 256U : 0U) |
              static_cast<std::uint64_t>(known[x]) << 12U | static_cast<std::uint64_t>(coming[x]) << 16U |
              static_cast<std::uint64_t>(has_noticed[x]) << 20U | (judged_before_cut[x] ? 512U : 0U));
      }
      for (const auto* all : {&hears, &says, &notices}) {
        d.add(all->size());
        for (const word& w : *all) d.add(w.bits());
      }
      d.add(posts.size());
      for (const post& p : posts) d.add(p.is + p.who * 8U + p.life * 64U);
      d.add(goodbyes.size());
      for (const auto& [who, of] : goodbyes) d.add(who * 8U + of);
      for (const told_of& t : told)
        d.add(1U + t.who + t.life * 8U + static_cast<unsigned>(t.how) * 64U + t.began_with * 512U +
              (t.unheard ? 4096U : 0U));
    }
    template <class T>
    static T take(std::vector<T>& from) {
      const T first = from.front();
      from.erase(from.begin());
      return first;
    }

    news_world& world;
    rank_id self;
    std::uint8_t life;
    is state = is::running;
    rank_id root;  // the rank with which this process's end began, if it ends
    bool returned = false;
    bool suspected = false;  // by an op of another rank
    bool parts = false;      // it has reported its error and waits for rank 0
    bool let_go = false;     // rank 0 has told the others
    bool bye_was_read = false;
    bool has_heart = life == 0;
    bool knows_end_of_zero = false;
    bool without_rank_0 = false;
    bool has_looked = false;
    int fences = 0;
    std::array<std::uint8_t, news_setup::most_ranks> known{};   // `all.members`: the process in each place
    std::array<std::uint8_t, news_setup::most_ranks> coming{};  // the process to be accepted next
    std::array<tie, news_setup::most_ranks> ties{};
    std::array<bool, news_setup::most_ranks> cut{};
    std::array<bool, news_setup::most_ranks> judged_before_cut{};
    std::array<bool, news_setup::most_ranks> reported{};
    std::array<bool, news_setup::most_ranks> heard_bye{};
    std::array<std::uint8_t, news_setup::most_ranks> has_noticed{};
    std::vector<word> hears;    // from rank 0
    std::vector<word> says;     // to rank 0
    std::vector<word> notices;  // deaths, from ranks of other hosts
    std::vector<post> posts;
    std::vector<std::pair<rank_id, std::uint8_t>> goodbyes;
    std::vector<told_of> told;
    std::optional<root_cause> first_failure;  // of its calls
    membership peers;
    losses gone;
  };

  process& now_in(rank_id r) {
    return **std::find_if(processes_.rbegin(), processes_.rend(), [r](const auto& p) { return p->self == r; });
  }
  const process& now_in(rank_id r) const { return const_cast<news_world&>(*this).now_in(r); }
  const process* known_to(const process& y, rank_id x) const {
    for (const auto& p : processes_) {
      if (p->self == x && p->life == y.known[x]) return p.get();
    }
    return nullptr;
  }

  // ---- what happens to the ranks -------------------------------------------------------------------------------------

  bool comes_back(rank_id r) const {
    return std::any_of(setup_.plots.begin(), setup_.plots.end(), [r](const auto& plot) {
      return std::any_of(plot.begin(), plot.end(), [r](const happening& h) {
        return (h.what == fate::comes_back || h.what == fate::is_replaced) && h.who == r;
      });
    });
  }
  bool can(const happening& h) const {
    const process& p = now_in(h.who);
    switch (h.what) {
      case fate::goes_on: return p.state == is::stopped;
      case fate::comes_back: return p.over() && zero_turns();
      case fate::is_replaced: return p.state == is::stopped && zero_turns();
      case fate::older_goes_on: return p.life > 0;
      case fate::ends_because: return p.takes_part() && p.first_failure.has_value();
      case fate::is_killed: return !p.over();
      case fate::cuts: return p.takes_part() && p.ties[h.other] == tie::up;
      default: return p.takes_part();
    }
  }
  void befall(const happening& h) {
    process& p = now_in(h.who);
    switch (h.what) {
      case fate::is_killed: return end(p, page_entry::alive);
      case fate::is_stopped: p.state = is::stopped; return;
      case fate::goes_on: p.state = is::running; return;
      case fate::comes_back:
      case fate::is_replaced: return zero_takes_back(h.who);
      case fate::older_goes_on:
        for (const auto& older : processes_) {
          if (older->self == h.who && older->state == is::stopped) older->state = is::running;
        }
        return;
      case fate::returns:
        p.returned = true;
        say(p, {word::left, h.who, p.life, true, h.who});
        return end(p, page_entry::left);
      case fate::ends_with_error: return part(p, h.who);
      case fate::ends_because: {
        const runtime::error why(runtime::errc::peer_failed, {.rank = h.who}, "a call failed", &*p.first_failure);
        return part(p, p.gone.cause_of(why).rank);
      }
      case fate::cuts:
        p.cut[h.other] = true;
        p.judged_before_cut[h.other] = page_[h.other].is != page_entry::alive;
        return p.lose_tie(h.other);
      case fate::suspects:
        now_in(h.other).suspected = true;
        p.posts.push_back({post::found, h.other, p.known[h.other]});
        return;
    }
  }
  void part(process& p, rank_id because_of) {
    p.root = because_of;
    say(p, {word::left, p.self, p.life, false, because_of});
    p.parts = true;
    p.peers.leave();
    p.let_go = p.self == 0 || p.knows_end_of_zero;
  }
  /// `rendezvous::leave`
  void say(process& p, const word& w) {
    if (p.self != 0) {
      if (!p.knows_end_of_zero) p.says.push_back(w);
      return;
    }
    for (const auto& to : processes_) {
      if (to->self != 0 && zero_.seat[to->self] == to.get()) to->hears.push_back(w);
    }
  }
  void end(process& p, page_entry::what how) {
    p.state = how == page_entry::left ? is::gone : is::killed;
    page_entry& mine = page_[p.self];
    if (how == page_entry::left && mine.is == page_entry::alive && mine.life == p.life) mine.is = page_entry::left;
    p.posts.clear();
    p.goodbyes.clear();
    p.hears.clear();
    p.notices.clear();
  }
  /// The process at the other end is gone or has closed this connection.
  bool is_broken(const process& y, rank_id x) const {
    const process* const at = known_to(y, x);
    return at->over() || (at->known[y.self] == y.life && at->ties[y.self] == tie::down);
  }
  bool heart_has_news(const process& y, rank_id x) const {
    if (!y.watches(x) || y.reported[x] || !y.why_fenced().empty()) return false;
    const page_entry& at = page_[x];
    if (at.life > y.known[x] || (at.life == y.known[x] && at.is == page_entry::left)) return false;
    if (at.life == y.known[x] && at.is == page_entry::dead) return true;
    const process* const p = known_to(y, x);
    return p->state == is::killed || p->state == is::stopped;
  }
  void judge(rank_id x, std::uint8_t life) {
    page_entry& at = page_[x];
    if (at.life < life || (at.life == life && at.is == page_entry::alive)) at = {page_entry::dead, life, ++verdicts_};
  }

  // ---- rank 0's end of the rendezvous --------------------------------------------------------------------------------

  bool zero_turns() const { return processes_[0]->turns() && !processes_[0]->parts; }

  bool zero_announces(const word& w) {
    if (zero_.gone[w.who]) return false;
    zero_.gone[w.who] = w;
    zero_tells(w);
    return true;
  }
  void zero_tells(const word& w) {
    for (const auto& to : processes_) {
      const bool hears = zero_.seat[to->self] == to.get() && !to->bye_was_read && !to->over();
      if (to->self != 0 && hears && setup_.deaf != to->self) to->hears.push_back(w);
    }
  }
  bool zero_ends(rank_id r, std::uint8_t life) {
    if (process* const older = std::exchange(zero_.seat[r], nullptr); older != nullptr && !older->over())
      older->hears.push_back({word::lost, r, life});
    return zero_announces({word::lost, r, life});
  }
  void zero_reads(process& from) {
    const word w = process::take(from.says);
    if (w.is == word::lost) {
      if (w.who == 0 || w.who == from.self || zero_.life[w.who] != w.life ||
          setup_.host[w.who] != setup_.host[from.self])
        return;
      if (zero_ends(w.who, w.life)) processes_[0]->on_dead(w.who);
      return;
    }
    const bool is_new = zero_announces(w);
    if (!w.in_peace) {
      from.let_go = true;
      zero_.seat[from.self] = nullptr;
    }
    from.bye_was_read = true;
    if (is_new) processes_[0]->on_left(w.who, w.in_peace, w.because_of);
  }
  void zero_sees_end(process& from) {
    zero_.seat[from.self] = nullptr;
    if (from.bye_was_read) return;
    if (zero_announces({word::lost, from.self, from.life})) processes_[0]->on_dead(from.self);
  }
  void zero_polls() {
    for (const auto& p : processes_) {
      process& from = *p;
      if (from.self == 0 || !processes_[0]->is_beside(from.self)) continue;
      while (zero_turns() && zero_.seat[from.self] == &from && !from.says.empty()) zero_reads(from);
      if (zero_turns() && zero_.seat[from.self] == &from && from.over()) zero_sees_end(from);
    }
  }
  /// `rendezvous::hold_dead` on rank 0
  void zero_hears_of_death(rank_id dead, std::uint8_t life) {
    if (zero_turns() && dead != 0 && zero_.life[dead] == life) zero_ends(dead, life);
  }
  void zero_takes_back(rank_id r) {
    const std::uint8_t before = zero_.life[r];
    if (zero_ends(r, before)) processes_[0]->on_dead(r);
    zero_.life[r] = static_cast<std::uint8_t>(before + 1);
    zero_.gone[r].reset();
    process& newer = *processes_.emplace_back(std::make_unique<process>(*this, r, zero_.life[r]));
    for (const auto& w : zero_.gone) {
      if (w) newer.hears.push_back(*w);
    }
    zero_tells({word::restarted, r, newer.life});
    zero_.seat[r] = &newer;
    processes_[0]->on_restarted(r, newer.life);
  }

  // ---- checks --------------------------------------------------------------------------------------------------------

  static std::string ranks_text(const process& y, rank_id x) {
    return "rank " + std::to_string(y.self) + " of rank " + std::to_string(x);
  }
  void check_told(process& y, rank_id x, effect how, const peer_report& what, const actors::loss* l);
  void check_published(const process& y, rank_id x);
  bool unheard(const process& y, rank_id left) const;
  void check_settled(const process& y, rank_id x);

  news_setup setup_;
  std::vector<std::size_t> done_;  // steps done, per plot
  std::vector<std::unique_ptr<process>> processes_;
  std::array<page_entry, news_setup::most_ranks> page_{};
  std::uint8_t verdicts_ = 0;
  struct {
    std::array<process*, news_setup::most_ranks> seat{};
    std::array<std::optional<word>, news_setup::most_ranks> gone{};
    std::array<std::uint8_t, news_setup::most_ranks> life{};
  } zero_;
};

}  // namespace parley::tests
