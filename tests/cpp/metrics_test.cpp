#include "debug/metrics.h"

#include <gtest/gtest.h>

#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace torch_xla::debug {
namespace {

// Metrics and counters register for life, so each test has names of its own.
Metric& NewMetric(const std::string& name, Unit unit) { return *new Metric(name, unit); }

constexpr double kUs = 1e3;
constexpr double kMs = 1e6;
constexpr double kSecond = 1e9;

TEST(MetricsFormat, Time) {
  Metric& metric = NewMetric("format.time", Unit::kTimeNs);
  EXPECT_EQ(metric.Format(0), "000.000us");
  EXPECT_EQ(metric.Format(2.895 * kUs), "002.895us");
  EXPECT_EQ(metric.Format(92 * kMs + 152.037 * kUs), "092ms152.037us");
  EXPECT_EQ(metric.Format(3 * kSecond + 640 * kMs + 888.060 * kUs), "03s640ms888.060us");
  EXPECT_EQ(metric.Format(28 * kSecond + 920 * kMs + 153.731 * kUs), "28s920ms153.731us");
  EXPECT_EQ(metric.Format(262 * kSecond + 555 * kMs + 668.071 * kUs), "04m22s555ms668.071us");
  EXPECT_EQ(metric.Format(3600 * kSecond), "01h00m00s000ms000.000us");
  EXPECT_EQ(metric.Format(90'061 * kSecond), "1d01h01m01s000ms000.000us");
  EXPECT_EQ(metric.Format(999.9996 * kUs), "001ms000.000us");
  EXPECT_EQ(metric.Format(-2 * kUs), "-002.000us");
}

TEST(MetricsFormat, BytesAndNumbers) {
  Metric& bytes = NewMetric("format.bytes", Unit::kBytes);
  EXPECT_EQ(bytes.Format(0), "0.00B");
  EXPECT_EQ(bytes.Format(512), "512.00B");
  EXPECT_EQ(bytes.Format(1.5 * 1024 * 1024), "1.50MB");
  Metric& number = NewMetric("format.number", Unit::kNumber);
  EXPECT_EQ(number.Format(12), "12.00");
}

TEST(Counters, AreListedOnlyWhenNotZero) {
  Counter& counter = GetCounter("counter.listed");
  EXPECT_EQ(&GetCounter("counter.listed"), &counter);
  EXPECT_EQ(FindCounter("counter.listed"), &counter);
  EXPECT_EQ(FindCounter("counter.unknown"), nullptr);
  auto listed = [] {
    for (const std::string& name : CounterNames()) {
      if (name == "counter.listed") return true;
    }
    return false;
  };
  EXPECT_FALSE(listed());
  counter.Add();
  counter.Add(41);
  EXPECT_EQ(counter.value(), 42);
  EXPECT_TRUE(listed());
  EXPECT_NE(MetricsReport().find("Counter: counter.listed\n  Value: 42\n"), std::string::npos);
  ClearCounters();
  EXPECT_FALSE(listed());
  EXPECT_EQ(MetricsReport().find("counter.listed"), std::string::npos);
}

TEST(Counters, RefuseASecondRegistration) {
  GetCounter("counter.twice");
  EXPECT_THROW(Counter("counter.twice"), std::logic_error);
}

TEST(Counters, CountFromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 1000; ++j) GetCounter("counter.threads").Add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(GetCounter("counter.threads").value(), 4000);
}

TEST(Metrics, KeepTheLastSamplesAndTheWholeSum) {
  Metric& metric = NewMetric("metric.window", Unit::kNumber);
  for (int i = 0; i < 2000; ++i) metric.AddSample(i);
  Metric::Data data = metric.data();
  EXPECT_EQ(data.count, 2000);
  EXPECT_EQ(data.sum, 1999.0 * 2000 / 2);
  ASSERT_EQ(data.samples.size(), 1024u);
  EXPECT_EQ(data.samples.front().value, 976);
  EXPECT_EQ(data.samples.back().value, 1999);
  EXPECT_LE(data.samples.front().timestamp_ns, data.samples.back().timestamp_ns);
  metric.Clear();
  EXPECT_EQ(metric.data().count, 0);
  EXPECT_TRUE(metric.data().samples.empty());
}

// The percentiles of the CompileTime that the blog shows.
TEST(Metrics, ReportHasTheFormatOfTheBlog) {
  Metric& metric = NewMetric("metric.blog", Unit::kTimeNs);
  for (double seconds : {11.110545595, 0.428053505, 3.640888060, 3.650126150, 10.0}) {
    metric.AddSample(seconds * kSecond);
  }
  std::string report = ShortMetricsReport({}, {"metric.blog"});
  const std::regex expected(
      "Metric: metric\\.blog\n"
      "  TotalSamples: 5\n"
      "  Accumulator: 28s829ms613\\.310us\n"
      "  ValueRate: [0-9dhms.]+us / second\n"
      "  Rate: [0-9.e+]+ / second\n"
      "  Percentiles: 1%=428ms053\\.505us; 5%=428ms053\\.505us; 10%=428ms053\\.505us; "
      "20%=03s640ms888\\.060us; 50%=03s650ms126\\.150us; 80%=11s110ms545\\.595us; "
      "90%=11s110ms545\\.595us; 95%=11s110ms545\\.595us; 99%=11s110ms545\\.595us\n");
  EXPECT_TRUE(std::regex_match(report, expected)) << report;
}

TEST(Metrics, ShortReport) {
  NewMetric("CompileTime", Unit::kTimeNs).AddSample(kMs);
  NewMetric("metric.other", Unit::kNumber).AddSample(1);
  GetCounter("CachedCompile").Add(7);
  GetCounter("aten::nonzero").Add();
  GetCounter("counter.other").Add();

  std::string usual = ShortMetricsReport({}, {});
  EXPECT_NE(usual.find("Metric: CompileTime\n"), std::string::npos);
  EXPECT_NE(usual.find("Counter: CachedCompile\n  Value: 7\n"), std::string::npos);
  EXPECT_NE(usual.find("Counter: aten::nonzero\n"), std::string::npos);
  EXPECT_EQ(usual.find("other"), std::string::npos);

  EXPECT_EQ(ShortMetricsReport({"counter.other", "counter.unknown"}, {}),
            "Counter: counter.other\n  Value: 1\n");
}

TEST(Metrics, ScopedTimerMeasures) {
  Metric& metric = NewMetric("metric.timer", Unit::kTimeNs);
  {
    ScopedTimer timer(metric);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(metric.data().count, 1);
  EXPECT_GE(metric.data().sum, 2 * kMs);
}

TEST(Metrics, ClearMetrics) {
  Metric& metric = NewMetric("metric.cleared", Unit::kNumber);
  metric.AddSample(3);
  EXPECT_EQ(FindMetric("metric.cleared"), &metric);
  ClearMetrics();
  EXPECT_EQ(metric.data().count, 0);
  for (const std::string& name : MetricNames()) EXPECT_NE(name, "metric.cleared");
}

}  // namespace
}  // namespace torch_xla::debug
