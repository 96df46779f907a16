#include <ATen/ops/empty.h>
#include <pybind11/typing.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "data/errors.h"
#include "data/example.h"
#include "data/record_reader.h"
#include "python/bindings.h"

namespace torch_xla::python {

namespace py = pybind11;

namespace {

using data::Example;
using data::Feature;
using Names = std::set<std::string, std::less<>>;

data::ByteSource SourceOf(py::object file) {
  return [file = std::move(file)](char* to, size_t size) -> size_t {
    py::gil_scoped_acquire gil;
    auto view = py::memoryview::from_memory(to, static_cast<py::ssize_t>(size));
    py::object got = file.attr("readinto")(view);
    view.attr("release")();
    const size_t count = got.is_none() ? 0 : got.cast<size_t>();
    if (count > size) throw data::DataError("readinto() returned more than its buffer holds");
    return count;
  };
}

data::Compression CompressionOf(const std::string& name) {
  static const std::map<std::string, data::Compression> kNames = {
      {"", data::Compression::kNone},
      {"ZLIB", data::Compression::kZlib},
      {"GZIP", data::Compression::kGzip}};
  auto it = kNames.find(name);
  if (it == kNames.end()) {
    throw py::value_error("expected `compression` to be '', 'ZLIB' or 'GZIP', got '" + name + "'");
  }
  return it->second;
}

template <typename T>
at::Tensor TensorOf(const T* values, size_t count, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(count)}, at::TensorOptions().dtype(dtype));
  if (count != 0) std::memcpy(tensor.mutable_data_ptr(), values, count * sizeof(T));
  return tensor;
}

py::object BytesValue(std::string_view value, bool as_text) {
  if (as_text) return py::str(value.data(), value.size());
  return py::cast(TensorOf(value.data(), value.size(), at::kByte));
}

py::object ToPython(const Feature& feature, bool as_text) {
  if (const auto* floats = std::get_if<std::vector<float>>(&feature)) {
    return py::cast(TensorOf(floats->data(), floats->size(), at::kFloat));
  }
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&feature)) {
    return py::cast(TensorOf(integers->data(), integers->size(), at::kLong));
  }
  const auto* values = std::get_if<std::vector<std::string_view>>(&feature);
  if (!values) return py::none();
  if (values->size() == 1) return BytesValue(values->front(), as_text);
  py::list list;
  for (std::string_view value : *values) list.append(BytesValue(value, as_text));
  return list;
}

using Features = py::typing::Dict<py::str, py::object>;

Features ToPython(const Example& example, const Names& texts) {
  Features result;
  for (const auto& [name, feature] : example) {
    result[py::str(name.data(), name.size())] = ToPython(feature, texts.contains(name));
  }
  return result;
}

/// RecordReader for Python. Any thread may call it, and it reads without the GIL.
class Reader {
 public:
  Reader(py::object file, const std::string& path, const std::string& compression,
         size_t buffer_size)
      : reader_(data::Inflate(SourceOf(std::move(file)), CompressionOf(compression), path), path,
                buffer_size) {}

  std::optional<py::bytes> ReadRecord() {
    std::unique_lock lock(mutex_, std::defer_lock);
    std::optional<std::string_view> record;
    {
      py::gil_scoped_release no_gil;
      lock.lock();
      record = reader_.Next();
    }
    if (!record) return std::nullopt;
    return py::bytes(record->data(), record->size());
  }

  std::optional<Features> ReadExample(const Names& texts) {
    std::unique_lock lock(mutex_, std::defer_lock);
    Example example;
    {
      py::gil_scoped_release no_gil;
      lock.lock();
      std::optional<std::string_view> record = reader_.Next();
      if (record) {
        try {
          example = data::ParseExample(*record);
        } catch (const data::DataError& error) {
          throw data::DataError(Where() + ": no valid tf.train.Example: " + error.what());
        }
      } else {
        lock.unlock();
      }
    }
    if (!lock.owns_lock()) return std::nullopt;
    try {
      return ToPython(example, texts);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_UnicodeDecodeError)) throw;
      throw data::DataError(Where() + ": text is not valid UTF-8: " + error.what());
    }
  }

 private:
  std::string Where() const {
    return reader_.path() + ": record " + std::to_string(reader_.index()) + " at offset " +
           std::to_string(reader_.offset());
  }

  std::mutex mutex_;  // taken without the GIL, since reading a Python file needs the GIL
  data::RecordReader reader_;
};

/// The values of a feature: a list of bytes, or a CPU tensor of floats or 64-bit integers.
Feature FeatureOf(const py::object& values) {
  if (py::isinstance<py::list>(values)) {
    std::vector<std::string_view> bytes;
    for (py::handle value : values.cast<py::list>()) {
      bytes.push_back(py::reinterpret_borrow<py::bytes>(value));
    }
    return bytes;
  }
  const auto tensor = values.cast<at::Tensor>();
  const auto count = tensor.numel();
  if (tensor.scalar_type() == at::kFloat) {
    const auto* data = tensor.const_data_ptr<float>();
    return std::vector<float>(data, data + count);
  }
  const auto* data = tensor.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + count);
}

}  // namespace

void BindData(py::module_& m) {
  py::class_<Reader>(m, "_TfRecordReader")
      .def(py::init<py::object, const std::string&, const std::string&, size_t>(), py::arg("file"),
           py::arg("path"), py::arg("compression"), py::arg("buffer_size"))
      .def("read_record", &Reader::ReadRecord)
      .def("read_example", &Reader::ReadExample, py::arg("texts"));
  m.def("_tf_record_frame", [](const py::bytes& record) {
    const data::RecordFrame frame = data::FrameOf(std::string_view(record));
    return py::make_tuple(py::bytes(frame.header, sizeof(frame.header)),
                          py::bytes(frame.footer, sizeof(frame.footer)));
  });
  // The 4 bytes of the masked CRC, as they are stored.
  m.def("_tf_masked_crc", [](const py::bytes& bytes) {
    const data::RecordFrame frame = data::FrameOf(std::string_view(bytes));
    return py::bytes(frame.footer, sizeof(frame.footer));
  });
  m.def("_tf_parse_example", [](const py::bytes& record, const Names& texts) {
    return ToPython(data::ParseExample(std::string_view(record)), texts);
  });
  m.def("_tf_serialize_example", [](const std::vector<std::pair<py::bytes, py::object>>& features) {
    Example example;
    for (const auto& [name, values] : features) {
      example.emplace_back(std::string_view(name), FeatureOf(values));
    }
    return py::bytes(data::SerializeExample(example));
  });
}

}  // namespace torch_xla::python
