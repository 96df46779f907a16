#include "runtime/key_value_store.h"

#include <cstring>
#include <exception>

#include "runtime/pjrt_abi.h"

namespace torch_xla::runtime {

using namespace pjrt;

namespace {

template <typename Args>
PJRT_Error* Report(const Args& args, PJRT_Error_Code code, const std::string& message) {
  return (*args.callback_error)(code, message.data(), message.size());
}

/// Returns the result of `call`. Turns exceptions into errors of the plugin, since no exception may
/// reach the plugin.
template <typename Args, typename Call>
PJRT_Error* Guarded(const Args& args, const Call& call) {
  try {
    return call(*static_cast<KeyValueStore*>(args.user_arg), std::string(args.key, args.key_size));
  } catch (const std::exception& error) {
    return Report(args, PJRT_Error_Code_INTERNAL, error.what());
  }
}

template <typename Args>
PJRT_Error* GiveValue(Args& args, KeyValueStore& store, const std::string& key,
                      std::chrono::milliseconds timeout) {
  const std::optional<std::string> value = store.Get(key, timeout);
  if (!value) {
    return Report(
        args, PJRT_Error_Code_NOT_FOUND,
        "no process has set '" + key + "' within " + std::to_string(timeout.count()) + " ms");
  }
  args.value = new char[value->size()];
  args.value_size = value->size();
  std::memcpy(args.value, value->data(), value->size());
  args.value_deleter_callback = [](char* text) { delete[] text; };
  return nullptr;
}

PJRT_Error* Get(PJRT_KeyValueGetCallback_Args* args) {
  return Guarded(*args, [&](KeyValueStore& store, const std::string& key) {
    return GiveValue(*args, store, key, std::chrono::milliseconds(args->timeout_in_ms));
  });
}

PJRT_Error* TryGet(PJRT_KeyValueTryGetCallback_Args* args) {
  return Guarded(*args, [&](KeyValueStore& store, const std::string& key) {
    return GiveValue(*args, store, key, std::chrono::milliseconds(0));
  });
}

PJRT_Error* Put(PJRT_KeyValuePutCallback_Args* args) {
  return Guarded(*args, [&](KeyValueStore& store, const std::string& key) -> PJRT_Error* {
    store.Put(key, std::string(args->value, args->value_size));
    return nullptr;
  });
}

}  // namespace

void SetStore(PJRT_Client_Create_Args& args, KeyValueStore& store) {
  args.kv_get_callback = &Get;
  args.kv_try_get_callback = &TryGet;
  args.kv_put_callback = &Put;
  args.kv_get_user_arg = args.kv_try_get_user_arg = args.kv_put_user_arg = &store;
}

}  // namespace torch_xla::runtime
