// What is run and raised with each read of a tensor, once the program has assertions.
#pragma once

namespace torch_xla::aten {

/// From now on a read also runs the calls of the host that are traced (torch._assert_async), and
/// calls `raise` before it returns. `raise` is called without the GIL.
void SetAfterRead(void (*raise)());

}  // namespace torch_xla::aten
