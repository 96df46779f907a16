#include "cpu/table.h"

#include "cpu/calls.h"
#include "cpu/convolution_call.h"
#include "cpu/ffi_handler.h"
#include "cpu/foreach.h"
#include "cpu/handlers.h"
#include "cpu/host_calls.h"

namespace torch_xla::cpu {
namespace {

constexpr Call kCalls[] = {
    {kAddRowsTarget, Handler<RunAddRows>},
    {kAttentionTarget, Handler<RunAttention>},
    {kAttentionBackwardTarget, Handler<RunAttentionBackward>},
    {kColumnSumsTarget, Handler<RunColumnSums>},
    {kConvolutionTarget, Handler<RunConvolution>},
    {kCrossEntropyBackwardTarget, Handler<RunCrossEntropyBackward>},
    {kDotTarget, Handler<RunDot>},
    {kEmbeddingBagTarget, Handler<RunEmbeddingBag>},
    {kEmptyTarget, Handler<RunEmpty>},
    {kFewRowsTarget, Handler<RunFewRows>},
    {kForeachTarget, Handler<RunForeach>},
    {kHasNanTarget, Handler<RunHasNan>},
    {kHostCallTarget, Handler<RunHostCall>},
    {kHostOperatorTarget, Handler<RunHostOperator>},
    {kMatmulTarget, Handler<RunMatmul>},
    {kMaxPoolBackwardTarget, Handler<RunMaxPoolBackward>},
    {kNanReportTarget, Handler<RunNanReport>},
    {kNormalizationTarget, Handler<RunNormalization>},
    {kNormalizationBackwardTarget, Handler<RunNormalizationBackward>},
    {kNormsTarget, Handler<RunNorms>},
    {kPointwiseTarget, Handler<RunPointwise>},
    {kRandomBitsTarget, Handler<RunRandomBits>},
    {kRecurrentTarget, Handler<RunRecurrent>},
    {kRecurrentBackwardTarget, Handler<RunRecurrentBackward>},
    {kReductionTarget, Handler<RunReduction>},
    {kRowSumsTarget, Handler<RunRowSums>},
    {kSoftmaxTarget, Handler<RunSoftmax>},
    {kSoftmaxBackwardTarget, Handler<RunSoftmaxBackward>},
    {kStackTarget, Handler<RunStack>},
    {kTranspositionTarget, Handler<RunTransposition>},
    {kUnbindTarget, Handler<RunUnbind>},
    {kUnpackNumbersTarget, Handler<RunUnpackNumbers>},
};

}  // namespace

std::span<const Call> Calls() { return kCalls; }

void RegisterCalls(runtime::Client& client) {
  for (const Call& call : kCalls) {
    if (!RegisterCpuHandler(client, call.target, call.handler)) return;
  }
}

}  // namespace torch_xla::cpu
