#include <parley/cli/payload/parts/part.hpp>

#include <algorithm>

namespace parley::cli {

std::uint64_t part::largest_bytes() const { return *std::max_element(op_.sizes.begin(), op_.sizes.end()); }

std::unique_ptr<runtime::memory_space::block> part::buffer() const {
  runtime::memory_space* const there = engine_.memory();
  return (there == nullptr ? runtime::host_memory() : *there).make(largest_bytes());
}

part_list parts_of(const part_terms& t) {
  switch (t.op.kind) {
    case op_kind::pipeline: return pipeline_parts(t);
    case op_kind::transfer: return transfer_parts(t);
    case op_kind::p2p: return batch_parts(t);
    case op_kind::halo: return halo_parts(t);
    case op_kind::collective: return collective_parts(t);
    case op_kind::training_pipeline: break;
  }
  return training_parts(t);
}

}  // namespace parley::cli
