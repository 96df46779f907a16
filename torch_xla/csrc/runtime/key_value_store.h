// The store through which the processes of a job exchange values while their clients start.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace torch_xla::runtime {

/// Keys and values that all processes of a job see. Called from any thread of the plugin. May throw
/// any std::exception, which the plugin receives as its error.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void Put(const std::string& key, const std::string& value) = 0;
  /// Returns the value as soon as there is one, or nothing if there is none after `timeout` (0:
  /// only looks once).
  virtual std::optional<std::string> Get(const std::string& key,
                                         std::chrono::milliseconds timeout) = 0;
};

/// The place of this process among the processes whose devices run programs together.
struct ProcessPlace {
  int rank = 0, size = 1;
  int local_rank = 0;  // index on its host, which selects its device
  std::shared_ptr<KeyValueStore> store;
};

namespace pjrt {
struct PJRT_Client_Create_Args;
}

/// Makes the plugin use `store`, which must live as long as the client.
void SetStore(pjrt::PJRT_Client_Create_Args& args, KeyValueStore& store);

}  // namespace torch_xla::runtime
