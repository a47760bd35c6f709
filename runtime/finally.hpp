#pragma once
/// Calls a function when the enclosing block ends, even if the block ends by an exception, or because its coroutine is destroyed.
///
///     running_ = &here;
///     const finally done([this] { running_ = nullptr; });
///
/// The function must not throw.

namespace parley::runtime {

template <class Function>
class [[nodiscard]] finally {
 public:
  explicit finally(Function f) noexcept : function_(f) {}
  finally(const finally&) = delete;
  finally& operator=(const finally&) = delete;
  ~finally() { function_(); }

 private:
  Function function_;
};

}  // namespace parley::runtime
