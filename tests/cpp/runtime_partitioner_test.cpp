// The callbacks by which a plugin asks how custom calls are partitioned, called as a plugin would:
// the CPU's has no such extension, so that the tests append one to its list.
#include <array>
#include <stdexcept>

#include "runtime/client_impl.h"
#include "runtime/custom_partitioner.h"
#include "runtime/partitioner_abi.h"
#include "runtime/program_shape.h"
#include "runtime/proto_writer.h"
#include "runtime_testing.h"

namespace torch_xla::runtime {
namespace {

using namespace pjrt;
using Integers = std::vector<int64_t>;

struct Registered {
  std::string name;
  JAX_CustomCallPartitioner_Callbacks* callbacks = nullptr;
} registered;

PJRT_Error* Register(PJRT_Register_Custom_Partitioner_Args* args) {
  registered.name.assign(args->name, args->name_size);
  registered.callbacks = args->callbacks;
  return nullptr;
}

/// A plugin that takes partitioners, for the life of this object.
class WithExtension {
 public:
  explicit WithExtension(size_t size = kStructSize<PJRT_Custom_Partitioner_Extension>) {
    const PluginLibrary& plugin = SharedClient().impl().plugin;
    last_ = const_cast<PJRT_Extension_Base*>(plugin.FindExtension(PJRT_Extension_Type_FFI));
    while (last_->next) last_ = last_->next;
    extension_.base = {size, kCustomPartitionerExtension, nullptr};
    extension_.register_custom_partitioner = Register;
    last_->next = &extension_.base;
    registered = {};
  }
  ~WithExtension() {
    last_->next = nullptr;
    if (registered.callbacks) registered.callbacks->dtor(registered.callbacks);
  }

 private:
  PJRT_Extension_Base* last_;
  PJRT_Custom_Partitioner_Extension extension_;
};

JAX_CustomCallPartitioner_string Text(const std::string& text) {
  return {text.data(), text.size()};
}

std::string View(const JAX_CustomCallPartitioner_string& text) { return {text.data, text.size}; }

/// A ShapeProto.
std::string Shape(const Integers& dims) {
  constexpr int64_t kF32 = 11;
  ProtoWriter shape;
  shape.Integer(/*element_type*/ 2, kF32);
  for (const int64_t dim : dims) shape.Integer(/*dimensions*/ 3, dim);
  return shape.Take();
}

/// An OpSharding of the tiles, and of copies of them if there are more devices.
std::string Tiles(const Integers& tiles, const Integers& devices, bool copies) {
  constexpr int64_t kOther = 3;
  ProtoWriter sharding;
  sharding.Integer(/*type*/ 1, kOther);
  for (const int64_t tile : tiles) sharding.Integer(/*tile_assignment_dimensions*/ 3, tile);
  for (const int64_t device : devices) sharding.Integer(/*tile_assignment_devices*/ 4, device);
  sharding.Integer(/*replicate_on_last_tile_dim*/ 6, copies ? 1 : 0);
  return sharding.Take();
}

/// What the plugin asks of a call of two operands, and what it gets.
struct Question {
  explicit Question(std::string sharding) : result_sharding(std::move(sharding)) {
    operands[0].shape = Text(wide);
    operands[1].shape = Text(long_);
    args.num_args = operands.size();
    args.op_args = operands.data();
    args.op_result = {Text(wide), !result_sharding.empty(), Text(result_sharding)};
    args.backend_config = Text(config);
    registered.callbacks->partition(registered.callbacks, &args);
  }
  ~Question() { args.header.cleanup_fn(args.header.data); }

  std::string wide = Shape({8, 6}), long_ = Shape({12}), config = "axis 0", result_sharding;
  std::array<JAX_CustomCallPartitioner_aval, 2> operands{};
  JAX_CustomCallPartitioner_Partition_Args args{};
};

PartitionedCall asked;

/// The result's rows by device, the second operand whole on each.
CallOnDevice ByRows(const PartitionedCall& call) {
  asked = call;
  if (call.result.tiles.empty()) throw std::invalid_argument("the call is not partitioned");
  return {"module {}", {call.result, {}}, {call.result, {{1, 2}, {1, 0, 3, 2}}}};
}

TEST(PartitionerTest, PluginsWithoutTheExtensionTakeNone) {
  EXPECT_FALSE(RegisterPartitioner(SharedClient(), "test.rows", ByRows));
  const WithExtension older(kStructSize<PJRT_Custom_Partitioner_Extension> - sizeof(void*));
  EXPECT_FALSE(RegisterPartitioner(SharedClient(), "test.rows", ByRows));
}

TEST(PartitionerTest, TheCallIsReadAndTheAnswerIsWritten) {
  const WithExtension extension;
  ASSERT_TRUE(RegisterPartitioner(SharedClient(), "test.rows", ByRows));
  EXPECT_EQ(registered.name, "test.rows");
  const Integers devices{3, 1, 0, 2};
  for (const bool copies : {false, true}) {
    const Question question(copies ? Tiles({2, 1, 2}, devices, true)
                                   : Tiles({4, 1}, devices, false));
    ASSERT_FALSE(question.args.header.has_error);
    EXPECT_EQ(asked.operands, (std::vector<Integers>{{8, 6}, {12}}));
    EXPECT_EQ(asked.result.tiles, (Integers{copies ? 2 : 4, 1}));
    EXPECT_EQ(asked.result.devices, devices);
    EXPECT_EQ(View(question.args.mlir_module), "module {}");
    const auto rows = ReadShardings(View(question.args.args_sharding[0]));
    const auto whole = ReadShardings(View(question.args.args_sharding[1]));
    const auto results = ReadShardings(View(question.args.result_sharding));
    ASSERT_TRUE(rows && whole && results);
    EXPECT_EQ((*rows)[0].tiles, asked.result.tiles);
    EXPECT_EQ((*rows)[0].devices, devices);
    EXPECT_TRUE((*whole)[0].tiles.empty());
    ASSERT_EQ(results->size(), 2u);
    EXPECT_EQ((*results)[0].tiles, asked.result.tiles);
    EXPECT_EQ((*results)[1].tiles, (Integers{1, 2}));
    EXPECT_EQ((*results)[1].devices, (Integers{1, 0, 3, 2}));
  }
}

TEST(PartitionerTest, ErrorsGoToThePlugin) {
  const WithExtension extension;
  ASSERT_TRUE(RegisterPartitioner(SharedClient(), "test.rows", ByRows));
  // A result without a sharding, and with one that is no tiling.
  for (const std::string& sharding : {std::string(), ProtoWriter().Integer(1, 1).Take()}) {
    const Question question(sharding);
    EXPECT_TRUE(question.args.header.has_error);
    EXPECT_EQ(question.args.header.code, PJRT_Error_Code_INTERNAL);
    EXPECT_EQ(View(question.args.header.error_msg), "the call is not partitioned");
  }
}

TEST(PartitionerTest, OtherQuestionsHaveNoErrors) {
  const WithExtension extension;
  ASSERT_TRUE(RegisterPartitioner(SharedClient(), "test.rows", ByRows));
  JAX_CustomCallPartitioner_InferShardingFromOperands_Args infer{};
  infer.has_result_sharding = infer.header.has_error = true;
  registered.callbacks->infer_sharding(registered.callbacks, &infer);
  EXPECT_FALSE(infer.has_result_sharding || infer.header.has_error);
  infer.header.cleanup_fn(infer.header.data);
  JAX_CustomCallPartitioner_PropagateUserSharding_Args spread{};
  const std::string given = Tiles({4, 1}, {0, 1, 2, 3}, false);
  spread.result_sharding = Text(given);
  registered.callbacks->propagate_user_sharding(registered.callbacks, &spread);
  EXPECT_FALSE(spread.header.has_error);
  EXPECT_EQ(View(spread.result_sharding), given);
  spread.header.cleanup_fn(spread.header.data);
}

}  // namespace
}  // namespace torch_xla::runtime
