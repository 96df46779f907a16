// The cache of compiled programs on disk: its settings and its entries.
#include <pybind11/stl.h>

#include "exec/disk_cache.h"
#include "exec/stored_programs.h"
#include "python/bindings.h"

namespace torch_xla::python {

namespace py = pybind11;

void BindCache(py::module_& m) {
  m.def(
      "_xla_initialize_cache",
      [](const std::string& folder, bool read_only) {
        exec::InitializeDiskCache(folder, read_only);
      },
      py::arg("folder"), py::arg("read_only"), NoGil());
  m.def("_xla_flush_cache", &exec::FinishStoring, NoGil());
  m.def("_xla_user_cache_folder", [] { return exec::UserCacheFolder().string(); });
  // Returns (folder, read_only, max_bytes), or None if there is no cache.
  m.def("_xla_cache_settings", []() -> std::optional<std::tuple<std::string, bool, int64_t>> {
    const auto cache = exec::GetDiskCache();
    if (!cache) return std::nullopt;
    const exec::DiskCache::Settings& settings = cache->settings();
    return std::tuple(settings.folder.string(), settings.read_only, settings.max_bytes);
  });
  // Returns (path, bytes, last use, key, content) of each entry, oldest first. Damaged entries have
  // no key, and entries that are no records have no content.
  m.def(
      "_xla_cache_entries",
      [](const std::string& folder, bool check) {
        std::vector<std::tuple<std::string, int64_t, double, py::bytes, py::bytes>> result;
        std::vector<exec::DiskCache::Entry> entries;
        {
          py::gil_scoped_release no_gil;
          entries = exec::DiskCache::List(folder, check);
        }
        for (const exec::DiskCache::Entry& entry : entries) {
          result.emplace_back(entry.path.string(), entry.bytes, entry.last_use,
                              py::bytes(entry.key), py::bytes(entry.content));
        }
        return result;
      },
      py::arg("folder"), py::arg("check"));
  m.def(
      "_xla_clear_cache_folder",
      [](const std::string& folder) { return exec::DiskCache::Clear(folder); }, py::arg("folder"),
      NoGil());
}

}  // namespace torch_xla::python
