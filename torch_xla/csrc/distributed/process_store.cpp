#include "distributed/process_store.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace torch_xla::distributed {
namespace {

class ProcessStore final : public runtime::KeyValueStore {
 public:
  explicit ProcessStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void Put(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  std::optional<std::string> Get(const std::string& key,
                                 std::chrono::milliseconds timeout) override {
    using namespace std::chrono_literals;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    // Polls, since waiting in the store would block it for all other calls.
    for (std::chrono::milliseconds pause = 1ms; !store_->check({key});
         pause = std::min<std::chrono::milliseconds>(2 * pause, 50ms)) {
      if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(pause);
    }
    const std::vector<uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::shared_ptr<runtime::KeyValueStore> MakeProcessStore(c10::intrusive_ptr<c10d::Store> store) {
  return std::make_shared<ProcessStore>(std::move(store));
}

}  // namespace torch_xla::distributed
