#include "debug/metrics.h"
#include "python/bindings.h"

namespace torch_xla::python {

namespace py = pybind11;

void BindMetrics(py::module_& m) {
  m.def("_xla_metrics_report", &debug::MetricsReport);
  m.def("_xla_short_metrics_report", &debug::ShortMetricsReport,
        py::arg("counters") = std::vector<std::string>(),
        py::arg("metrics") = std::vector<std::string>());
  m.def("_xla_counter_names", &debug::CounterNames);
  m.def("_xla_metric_names", &debug::MetricNames);
  m.def("_xla_counter_value", [](const std::string& name) -> std::optional<int64_t> {
    debug::Counter* counter = debug::FindCounter(name);
    if (!counter || counter->value() == 0) return std::nullopt;
    return counter->value();
  });
  m.def("_xla_increment_counter",
        [](const std::string& name, int64_t n) { debug::GetCounter(name).Add(n); });
  // Returns (count, sum, (time, value) of each kept sample).
  using MetricData = std::tuple<int64_t, double, std::vector<std::pair<double, double>>>;
  m.def("_xla_metric_data", [](const std::string& name) -> std::optional<MetricData> {
    debug::Metric* metric = debug::FindMetric(name);
    if (!metric) return std::nullopt;
    debug::Metric::Data data = metric->data();
    if (data.count == 0) return std::nullopt;
    std::vector<std::pair<double, double>> samples;
    for (const auto& sample : data.samples) {
      samples.emplace_back(static_cast<double>(sample.timestamp_ns) * 1e-9, sample.value);
    }
    return MetricData(data.count, data.sum, std::move(samples));
  });
  m.def("_clear_xla_counters", &debug::ClearCounters);
  m.def("_clear_xla_metrics", &debug::ClearMetrics);
}

}  // namespace torch_xla::python
