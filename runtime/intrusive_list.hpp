#pragma once
/// A circular doubly linked list. Its nodes are members or bases of the linked objects, so that linking allocates nothing, and an object's
/// destructor can unlink the object from any list.
///
///     struct waiter : list_hook { … };
///     intrusive_list<waiter> waiting;
///     waiting.push_back(w);   w.unlink();
namespace parley::runtime {

struct list_hook {
  list_hook() noexcept = default;
  list_hook(const list_hook&) = delete;
  list_hook& operator=(const list_hook&) = delete;
  ~list_hook() { unlink(); }

  bool linked() const noexcept { return next_ != nullptr; }
  void unlink() noexcept {
    if (next_ == nullptr) return;
    next_->previous_ = previous_;
    previous_->next_ = next_;
    next_ = previous_ = nullptr;
  }

 private:
  template <class T>
  friend class intrusive_list;
  list_hook* next_ = nullptr;
  list_hook* previous_ = nullptr;
};

/// `T` derives from `list_hook`. The list does not own its nodes; its destructor unlinks the remaining nodes.
template <class T>
class intrusive_list {
 public:
  intrusive_list() noexcept { root_.next_ = root_.previous_ = &root_; }
  intrusive_list(const intrusive_list&) = delete;
  intrusive_list& operator=(const intrusive_list&) = delete;
  ~intrusive_list() {
    clear();
    root_.next_ = root_.previous_ = nullptr;
  }

  bool empty() const noexcept { return root_.next_ == &root_; }
  void push_back(T& node) noexcept {
    list_hook& hook = node;
    hook.previous_ = root_.previous_;
    hook.next_ = &root_;
    root_.previous_->next_ = &hook;
    root_.previous_ = &hook;
  }
  T& front() noexcept { return static_cast<T&>(*root_.next_); }
  const T& front() const noexcept { return static_cast<const T&>(*root_.next_); }
  T& pop_front() noexcept {
    T& first = front();
    static_cast<list_hook&>(first).unlink();
    return first;
  }
  void clear() noexcept {
    while (!empty()) pop_front();
  }
  /// Moves all nodes of `other` to the end of this list.
  void take_all(intrusive_list& other) noexcept {
    while (!other.empty()) push_back(other.pop_front());
  }
  /// Visits the nodes in order; the visitor may unlink the node that it is given.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (list_hook* hook = root_.next_; hook != &root_;) {
      list_hook* following = hook->next_;
      visit(static_cast<T&>(*hook));
      hook = following;
    }
  }
  /// The first node for which `is` returns true; null: none.
  template <class Is>
  T* find_if(Is&& is) {
    for (list_hook* hook = root_.next_; hook != &root_; hook = hook->next_) {
      if (is(static_cast<T&>(*hook))) return &static_cast<T&>(*hook);
    }
    return nullptr;
  }

 private:
  list_hook root_;
};

}  // namespace parley::runtime
