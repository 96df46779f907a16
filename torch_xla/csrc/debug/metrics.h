// Counters and metrics, kept in the process and read by torch_xla.debug.metrics.
//
// Hot-path rule: an increment is one relaxed atomic add on a cell that the call
// site found once (a static, or generated per op); no lock, no string, no map.
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

/// A number that only grows until cleared. It is listed once it is not zero.
class Counter {
 public:
  explicit Counter(std::string name);  // registers for life: make it static
  void Add(int64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }
  void Clear() { value_.store(0, std::memory_order_relaxed); }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::atomic<int64_t> value_{0};
};

/// The counter of `name`, made on first use (a look-up: not for the hot path).
Counter& GetCounter(std::string_view name);

/// How a metric's numbers are printed.
enum class Unit { kNumber, kBytes, kTimeNs };

/// A stream of samples: total count, sum, and the last 1,024 with their times.
class Metric {
 public:
  Metric(std::string name, Unit unit);  // registers for life: make it static
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
  /// "02s115ms003.125us", "1.50MB", "12.00".
  std::string Format(double value) const;

 private:
  std::string name_;
  Unit unit_;
  mutable std::mutex mutex_;
  int64_t count_ = 0;
  double sum_ = 0;
  std::deque<Sample> samples_;
};

/// Adds the life time of the object, in nanoseconds, to `metric`.
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

/// Names of counters that are not zero, and of metrics that have samples; sorted.
std::vector<std::string> CounterNames();
std::vector<std::string> MetricNames();
/// nullptr when there is none of that name.
Counter* FindCounter(std::string_view name);
Metric* FindMetric(std::string_view name);
void ClearCounters();
void ClearMetrics();

/// The report that people read: metrics (TotalSamples, Accumulator, ValueRate,
/// Rate, Percentiles), then counters.
std::string MetricsReport();
/// Only the named counters and metrics; both empty: the most used ones.
std::string ShortMetricsReport(const std::vector<std::string>& counters,
                               const std::vector<std::string>& metrics);

}  // namespace torch_xla::debug
