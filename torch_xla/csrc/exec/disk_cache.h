// Compiled programs on disk, for all processes that share a folder.
//
// An entry is one file, written whole or not at all; its name is a hash of its key, and what the
// key begins with ("program: ..."). It holds the key and a checksum of everything: one that is
// torn, or another's, is none. The folder may be one of the user's: nothing is removed there but
// what has a name of that form and begins as entries do.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_xla::lazy {

class DiskCache {
 public:
  struct Settings {
    std::filesystem::path folder;
    bool read_only = false;
    /// Beyond this those that were used least recently go.
    int64_t max_bytes = int64_t{10} << 30;
    /// How long a process waits for the entry that another one is making.
    std::chrono::milliseconds patience = std::chrono::minutes(10);
  };
  explicit DiskCache(Settings settings) : settings_(std::move(settings)) {}

  const Settings& settings() const { return settings_; }

  /// Makes the folder where it is to be written; warns where it cannot be used.
  void Check();

  /// The content of an entry, which counts as used; nothing where there is none.
  std::optional<std::string> Read(std::string_view key);
  /// Whether it is there now; warns where that cannot be done.
  bool Write(std::string_view key, std::string_view content);
  void Remove(std::string_view key);
  /// For people: what of a key no entry has, or that it had to make room. Looks at all entries, and
  /// at the key of an entry that was written since as at none.
  std::string WhyMissing(std::string_view key) const;

  /// The right to make an entry, among threads and processes; it ends with its holder, however that
  /// ends.
  class Claim {
   public:
    Claim() = default;
    explicit Claim(int file) : file_(file) {}
    Claim(Claim&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Claim& operator=(Claim&& other) noexcept {
      std::swap(file_, other.file_);
      return *this;
    }
    ~Claim();

   private:
    int file_ = -1;
  };
  /// Waits while another one has the right to make an entry, and no longer than there is patience.
  Claim MakeClaim(std::string_view key);

  struct Entry {
    std::filesystem::path path;
    int64_t bytes = 0;
    double last_use = 0;  // in seconds, as time() has it
    std::string key;      // empty: damaged
    std::string content;  // of records ("record: …"), which are short
  };
  /// Sorted by their last use. `check`: those whose content is damaged are told apart, too.
  static std::vector<Entry> List(const std::filesystem::path& folder, bool check);
  /// Removes all entries that are not damaged at their beginning, and those that are half written;
  /// returns the number of the former.
  static size_t Clear(const std::filesystem::path& folder);

 private:
  std::filesystem::path PathOf(std::string_view key) const;
  void Evict();
  /// Warns once; returns false.
  bool Complain(const std::string& what, int error);

  const Settings settings_;
  std::mutex mutex_;
  int64_t bytes_ = -1;  // of all entries, as far as this process knows; -1: not known
  int writes_ = 0;      // since they were counted
  bool complained_ = false;
};

/// torch_xla's below the user's folder for caches; empty where there is none.
std::filesystem::path UserCacheFolder();

/// The cache of this process; null where it is to have none. As the environment says
/// (XLA_PERSISTENT_CACHE_PATH, …_READ_ONLY, …_MAX_BYTES) at the first call, or as was said since.
std::shared_ptr<DiskCache> GetDiskCache();
/// From now on; an empty folder: none.
void InitializeDiskCache(std::filesystem::path folder, bool read_only);

}  // namespace torch_xla::lazy
