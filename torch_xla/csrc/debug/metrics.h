// Counters and metrics of the process, read by torch_xla.debug.metrics.
//
// Rule for hot paths: an increment is a relaxed atomic add to a counter that the call site looked
// up once (a static, or generated per op). It takes no lock and makes no string.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla::debug {

/// A number that only grows until it is cleared. It is listed if it is not zero.
class Counter {
 public:
  explicit Counter(std::string name);  // registers for ever: make it static
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }
  void Clear() { value_.store(0, std::memory_order_relaxed); }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::atomic<int64_t> value_{0};
};

/// The counter of that name, made at the first call. The look-up is too slow for hot paths.
Counter& GetCounter(std::string_view name);

/// The unit in which the numbers of a metric are printed.
enum class Unit { kNumber, kBytes, kTimeNs };

/// A stream of samples: their total number, their sum, and the last 1,024 samples with their times.
class Metric {
 public:
  Metric(std::string name, Unit unit);  // registers for ever: make it static
  void AddSample(double value);
  void Clear();

  struct Sample {
    int64_t timestamp_ns;
    double value;
  };
  struct Data {
    int64_t count = 0;
    double sum = 0;
    std::vector<Sample> samples;
  };
  Data data() const;
  const std::string& name() const { return name_; }
  Unit unit() const { return unit_; }
  /// For example "02s115ms003.125us", "1.50MB" or "12.00".
  std::string Format(double value) const;

 private:
  std::string name_;
  Unit unit_;
  mutable std::mutex mutex_;
  int64_t count_ = 0;
  double sum_ = 0;
  std::deque<Sample> samples_;
};

/// Adds the object's lifetime in nanoseconds to `metric`.
class ScopedTimer {
 public:
  explicit ScopedTimer(Metric& metric)
      : metric_(metric), start_(std::chrono::steady_clock::now()) {}
  ~ScopedTimer();
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Metric& metric_;
  std::chrono::steady_clock::time_point start_;
};

/// The sorted names of counters that are not zero, and of metrics that have samples.
std::vector<std::string> CounterNames();
std::vector<std::string> MetricNames();
/// nullptr if there is none of that name.
Counter* FindCounter(std::string_view name);
Metric* FindMetric(std::string_view name);
void ClearCounters();
void ClearMetrics();

/// The report for users: metrics (TotalSamples, Accumulator, ValueRate, Rate, Percentiles), then
/// counters.
std::string MetricsReport();
/// A report of the named counters and metrics only; of the most used ones if both lists are empty.
std::string ShortMetricsReport(const std::vector<std::string>& counters,
                               const std::vector<std::string>& metrics);

}  // namespace torch_xla::debug
