// What the processes of one job tell each other while their clients start.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace torch_xla::runtime {

/// Keys and values that all processes of a job see. Called from any thread of the plugin; may
/// throw any std::exception, which the plugin gets as its error.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual void Put(const std::string& key, const std::string& value) = 0;
  /// The value, once there is one; nothing where there is none after `timeout` (0: only looks).
  virtual std::optional<std::string> Get(const std::string& key,
                                         std::chrono::milliseconds timeout) = 0;
};

/// The place of this process among those that make programs over their devices together.
struct ProcessPlace {
  int rank = 0, size = 1;
  int local_rank = 0;  // on its host: which device is its own
  std::shared_ptr<KeyValueStore> store;
};

namespace pjrt {
struct PJRT_Client_Create_Args;
}

/// Has the plugin use `store`, which must live as long as the client.
void SetStore(pjrt::PJRT_Client_Create_Args& args, KeyValueStore& store);

}  // namespace torch_xla::runtime
