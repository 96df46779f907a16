// What tells compiled programs apart that have the same text.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <sstream>
#include <string>

#include "runtime/client.h"
#include "runtime/host_processor.h"
#include "runtime/plugin.h"

namespace torch_xla::runtime {
namespace {

Client& ClientOf(const char* platform, const PluginSpec& spec) {
  AddPlugin(platform, spec);
  return *Client::Create(platform).release();
}

Client& Four() {
  static Client& client =
      ClientOf("KEYTEST", {getenv("PJRT_CPU_LIBRARY_PATH"), {{"cpu_device_count", int64_t{4}}}});
  return client;
}

TEST(CompileKeyTest, IsTheSameForTheSame) {
  EXPECT_EQ(Four().CompileKey({}), Four().CompileKey({}));
  EXPECT_NE(Four().CompileKey({}).find(Four().version()), std::string::npos);
}

TEST(CompileKeyTest, CoversTheOptionsOfTheCompilation) {
  const std::string plain = Four().CompileKey({});
  // A collective over all replicas has the same text for any number of them.
  EXPECT_NE(Four().CompileKey({.num_replicas = 2}), plain);
  EXPECT_NE(Four().CompileKey({.num_replicas = 2}), Four().CompileKey({.num_replicas = 4}));
  EXPECT_NE(Four().CompileKey({.num_partitions = 2}), Four().CompileKey({.num_replicas = 2}));
  EXPECT_NE(Four().CompileKey({.use_spmd_partitioning = true}), plain);
  EXPECT_NE(Four().CompileKey({.propagate_to_outputs = {true}}), plain);
  EXPECT_NE(Four().CompileKey({.device = 1}), plain);
  EXPECT_NE(Four().CompileKey({.overrides = {{"xla_cpu_enable_fast_min_max", "false"}}}), plain);
  EXPECT_THROW(Four().CompileKey({.device = 4}), Error);
}

TEST(CompileKeyTest, CoversTheOptionsOfTheClient) {
  // A name of its own each, but else the same.
  auto key = [](int64_t devices) {
    std::string text = ClientOf("KEYTEST_OTHER",
                                {getenv("PJRT_CPU_LIBRARY_PATH"), {{"cpu_device_count", devices}}})
                           .CompileKey({});
    const size_t client = text.find("client:");
    return text.substr(client, text.find('\n', client) - client);
  };
  EXPECT_EQ(key(2), "client: cpu_device_count=2");
  EXPECT_NE(key(2), key(3));
}

TEST(CompileKeyTest, CoversTheFlagsAndTheFileThatTheyNameThemIn) {
  const std::string plain = Four().CompileKey({});
  const char* before = getenv("XLA_FLAGS");
  const std::string kept = before ? before : "";
  setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2", 1);
  const std::string flags = Four().CompileKey({});
  before ? setenv("XLA_FLAGS", kept.c_str(), 1) : unsetenv("XLA_FLAGS");
  EXPECT_NE(flags, plain);
  EXPECT_EQ(Four().CompileKey({}), plain);
}

TEST(CompileKeyTest, CoversTheProcessorThatProgramsRunOn) {
  EXPECT_FALSE(HostProcessor().empty());
  EXPECT_NE(Four().CompileKey({}).find(HostProcessor()), std::string::npos);
}

TEST(ProcessorTest, IsWhatCodeDependsOn) {
  auto describe = [](const std::string& text) {
    std::istringstream in(text);
    return DescribeProcessor(in);
  };
  const std::string avx512 =
      "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\n"
      "cpu MHz\t\t: 2400.1\nflags\t\t: sse2 avx2 avx512f\n";
  EXPECT_EQ(describe(avx512), " AuthenticAMD; 17; sse2 avx2 avx512f;");
  // The clock and the second processor say nothing.
  EXPECT_EQ(describe(avx512 + "\nprocessor\t: 1\nflags\t\t: sse2\n"), describe(avx512));
  EXPECT_NE(describe("vendor_id\t: AuthenticAMD\nmodel\t\t: 17\nflags\t\t: sse2 avx2\n"),
            describe(avx512));
  EXPECT_EQ(describe("processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n"),
            " fp asimd sve; 0xd4f;");
}

}  // namespace
}  // namespace torch_xla::runtime
