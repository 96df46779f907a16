#include "debug/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace torch_xla::debug {
namespace {

constexpr size_t kKeptSamples = 1024;
constexpr std::array<int, 9> kPercentiles = {1, 5, 10, 20, 50, 80, 90, 95, 99};
constexpr std::array<std::string_view, 4> kShortReportMetrics = {
    "CompileTime", "ExecuteTime", "TransferFromDeviceTime", "TransferToDeviceTime"};
constexpr std::array<std::string_view, 3> kShortReportCounters = {"CachedCompile", "MarkStep",
                                                                  "UncachedCompile"};
constexpr std::string_view kFallbackPrefix = "aten::";

// Names are copied, since a static Counter may be destroyed before the registry is read for the
// last time.
template <typename T>
using Table = std::map<std::string, T*, std::less<>>;

struct Registry {
  std::mutex mutex;
  Table<Counter> counters;
  Table<Metric> metrics;
};

// Never destroyed: other static objects and late threads still count after exit() began.
Registry& GetRegistry() {
  static Registry* registry = new Registry();
  return *registry;
}

template <typename T>
void Register(Table<T> Registry::* table, const std::string& name, T* entry) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  if (!(registry.*table).emplace(name, entry).second) {
    throw std::logic_error("metrics: `" + name + "` is registered twice");
  }
}

template <typename T>
T* Find(Table<T> Registry::* table, std::string_view name) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto it = (registry.*table).find(name);
  return it == (registry.*table).end() ? nullptr : it->second;
}

template <typename T>
Table<T> Snapshot(Table<T> Registry::* table) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return registry.*table;
}

int64_t NowNs() {
  auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

template <typename... Args>
std::string Printf(const char* format, Args... args) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

// For example "04m22s555ms668.071us": from the largest unit that is not zero down to microseconds.
std::string FormatTime(double value) {
  struct Step {
    int64_t ns;
    const char* format;
  };
  constexpr int64_t kMs = 1'000'000;
  constexpr int64_t kSecond = 1'000 * kMs;
  static constexpr std::array<Step, 5> kSteps = {{{86'400 * kSecond, "%lldd"},
                                                  {3'600 * kSecond, "%02lldh"},
                                                  {60 * kSecond, "%02lldm"},
                                                  {kSecond, "%02llds"},
                                                  {kMs, "%03lldms"}}};
  int64_t ns = std::llround(std::fabs(value));
  std::string text = value < 0 && ns > 0 ? "-" : "";
  bool started = false;
  for (const Step& step : kSteps) {
    started = started || ns >= step.ns;
    if (started) text += Printf(step.format, static_cast<long long>(ns / step.ns));
    ns %= step.ns;
  }
  return text + Printf("%03lld.%03lldus", static_cast<long long>(ns / 1'000),
                       static_cast<long long>(ns % 1'000));
}

std::string FormatBytes(double value) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (std::fabs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return Printf("%.2f%s", value, kUnits[unit]);
}

void Report(std::ostream& out, const std::string& name, const Metric& metric) {
  Metric::Data data = metric.data();
  if (data.samples.empty()) return;
  // Rates cover the kept samples, from the oldest of them until now.
  double seconds =
      static_cast<double>(std::max<int64_t>(NowNs() - data.samples.front().timestamp_ns, 1)) * 1e-9;
  std::vector<double> values;
  values.reserve(data.samples.size());
  double sum = 0;
  for (const Metric::Sample& sample : data.samples) {
    values.push_back(sample.value);
    sum += sample.value;
  }
  std::sort(values.begin(), values.end());

  out << "Metric: " << name << "\n  TotalSamples: " << data.count
      << "\n  Accumulator: " << metric.Format(data.sum)
      << "\n  ValueRate: " << metric.Format(sum / seconds)
      << " / second\n  Rate: " << static_cast<double>(values.size()) / seconds
      << " / second\n  Percentiles: ";
  const char* separator = "";
  for (int percent : kPercentiles) {
    size_t index = values.size() * static_cast<size_t>(percent) / 100;
    out << std::exchange(separator, "; ") << percent << "%=" << metric.Format(values[index]);
  }
  out << '\n';
}

void Report(std::ostream& out, const std::string& name, const Counter& counter) {
  if (int64_t value = counter.value()) out << "Counter: " << name << "\n  Value: " << value << '\n';
}

template <typename T, typename Names>
void ReportNamed(std::ostream& out, Table<T> Registry::* table, const Names& names) {
  for (const auto& name : names) {
    if (T* entry = Find(table, name)) Report(out, std::string(name), *entry);
  }
}

}  // namespace

Counter::Counter(std::string name) : name_(std::move(name)) {
  Register(&Registry::counters, name_, this);
}

Counter& GetCounter(std::string_view name) {
  // A separate lock, since the constructor takes the registry's lock.
  static std::mutex* making = new std::mutex();
  std::lock_guard<std::mutex> lock(*making);
  Counter* counter = Find(&Registry::counters, name);
  return counter ? *counter : *new Counter(std::string(name));
}

Metric::Metric(std::string name, Unit unit) : name_(std::move(name)), unit_(unit) {
  Register(&Registry::metrics, name_, this);
}

void Metric::AddSample(double value) {
  int64_t now = NowNs();
  std::lock_guard<std::mutex> lock(mutex_);
  ++count_;
  sum_ += value;
  if (samples_.size() == kKeptSamples) samples_.pop_front();
  samples_.push_back({now, value});
}

void Metric::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  count_ = 0;
  sum_ = 0;
  samples_.clear();
}

Metric::Data Metric::data() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {count_, sum_, {samples_.begin(), samples_.end()}};
}

std::string Metric::Format(double value) const {
  switch (unit_) {
    case Unit::kBytes:
      return FormatBytes(value);
    case Unit::kTimeNs:
      return FormatTime(value);
    case Unit::kNumber:
      break;
  }
  return Printf("%.2f", value);
}

ScopedTimer::~ScopedTimer() {
  std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - start_;
  metric_.AddSample(static_cast<double>(elapsed.count()));
}

std::vector<std::string> CounterNames() {
  std::vector<std::string> names;
  for (const auto& [name, counter] : Snapshot(&Registry::counters)) {
    if (counter->value() != 0) names.push_back(name);
  }
  return names;
}

std::vector<std::string> MetricNames() {
  std::vector<std::string> names;
  for (const auto& [name, metric] : Snapshot(&Registry::metrics)) {
    if (metric->data().count != 0) names.push_back(name);
  }
  return names;
}

Counter* FindCounter(std::string_view name) { return Find(&Registry::counters, name); }
Metric* FindMetric(std::string_view name) { return Find(&Registry::metrics, name); }

void ClearCounters() {
  for (const auto& [name, counter] : Snapshot(&Registry::counters)) counter->Clear();
}

void ClearMetrics() {
  for (const auto& [name, metric] : Snapshot(&Registry::metrics)) metric->Clear();
}

std::string MetricsReport() {
  std::ostringstream out;
  for (const auto& [name, metric] : Snapshot(&Registry::metrics)) Report(out, name, *metric);
  for (const auto& [name, counter] : Snapshot(&Registry::counters)) Report(out, name, *counter);
  return out.str();
}

std::string ShortMetricsReport(const std::vector<std::string>& counters,
                               const std::vector<std::string>& metrics) {
  std::ostringstream out;
  if (counters.empty() && metrics.empty()) {
    ReportNamed(out, &Registry::metrics, kShortReportMetrics);
    ReportNamed(out, &Registry::counters, kShortReportCounters);
    for (const auto& [name, counter] : Snapshot(&Registry::counters)) {
      if (name.starts_with(kFallbackPrefix)) Report(out, name, *counter);
    }
  } else {
    ReportNamed(out, &Registry::metrics, metrics);
    ReportNamed(out, &Registry::counters, counters);
  }
  return out.str();
}

}  // namespace torch_xla::debug
