#pragma once
/// What the bindings of several ops share: types of elements, configs, and messages in batches.
#include "buffers.hpp"
#include "cuda.hpp"
#include "own_configs.hpp"
#include "ranks.hpp"

#include <parley/p2p.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace parley::python {

/// Calls `f.operator()<T>()` with the type of the elements.
template <class F>
auto with_type(element e, F&& f) {
  switch (e) {
    case element::boolean: return f.template operator()<bool>();
    case element::i8: return f.template operator()<std::int8_t>();
    case element::i16: return f.template operator()<std::int16_t>();
    case element::i32: return f.template operator()<std::int32_t>();
    case element::i64: return f.template operator()<std::int64_t>();
    case element::u8: return f.template operator()<std::uint8_t>();
    case element::u16: return f.template operator()<std::uint16_t>();
    case element::u32: return f.template operator()<std::uint32_t>();
    case element::u64: return f.template operator()<std::uint64_t>();
    case element::f16: return f.template operator()<runtime::f16>();
    case element::bf16: return f.template operator()<runtime::bf16>();
    case element::f32: return f.template operator()<float>();
    case element::f64: return f.template operator()<double>();
    case element::bytes: break;
  }
  return f.template operator()<std::byte>();
}

template <class T>
std::span<T> elements_of(const buffer& b) {
  return {reinterpret_cast<T*>(b.bytes.data()), b.bytes.size() / sizeof(T)};
}

struct smaller {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct larger {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

/// Calls `f.operator()<T, Combine>()` for numbers of type `e` that are combined by `sum`, `product`, `min` or `max`.
template <class F>
auto with_numbers(element e, const std::string& by, F&& f) {
  using result = decltype(f.template operator()<float, std::plus<>>());
  return with_type(e, [&]<class T>() -> result {
    if constexpr (std::is_same_v<T, std::byte> || std::is_same_v<T, bool>) {
      runtime::raise({runtime::errc::bad_argument, "all_reduce combines numbers; these are bytes or truth values"});
    } else {
      if (by == "sum") return f.template operator()<T, std::plus<>>();
      if (by == "product") return f.template operator()<T, std::multiplies<>>();
      if (by == "min") return f.template operator()<T, smaller>();
      if (by == "max") return f.template operator()<T, larger>();
      runtime::raise({runtime::errc::bad_argument, "`by` is one of sum, product, min and max"});
    }
  });
}

/// Nothing: the op pairs or groups its ranks otherwise.
using role_function = std::optional<std::function<nb::object(runtime::rank_id)>>;
/// Throws `bad_argument` if the function returns something else than a text, and what the function throws.
std::string role_of(const role_function& f, runtime::rank_id r, const std::string& op);

struct p2p {
  rank_ptr where;
  op_memory memory;
  ops::p2p op;
};
struct p2p_operation {
  ops::p2p_operation op;
  buffer of;
};
/// Throws `bad_argument` for None in the list, and for memory that lies elsewhere than that of `by`. The memory of the operations is added
/// to `keeps`.
std::vector<ops::p2p_operation> operations_of(const p2p& by, const std::vector<const p2p_operation*>& batch,
                                              std::vector<keep>& keeps);

/// The same call, and the wait for its end.
template <class Op, class... Words>
auto waits(std::unique_ptr<call> (*begins)(Op&, Words...)) {
  return [begins](Op& op, Words... words) { return begins(op, words...)->wait(); };
}

}  // namespace parley::python
