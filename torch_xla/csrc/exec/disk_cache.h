// A cache of compiled programs on disk, shared by all processes that use the folder.
//
// An entry is one file, which appears complete or not at all. Its name is a hash of its key
// followed by the first word of the key ("program: ..."). It holds the key and a checksum over the
// key and the content; an entry that is torn or has another key counts as missing. The folder may
// hold the user's own files: only files with such a name and the magic bytes are ever removed.
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

namespace torch_xla::exec {

class DiskCache {
 public:
  struct Settings {
    std::filesystem::path folder;
    bool read_only = false;
    /// Above this size the least recently used entries are evicted.
    int64_t max_bytes = int64_t{10} << 30;
  };
  explicit DiskCache(Settings settings) : settings_(std::move(settings)) {}

  const Settings& settings() const { return settings_; }

  /// Makes the folder unless the cache is read-only; warns if the folder cannot be used.
  void Check();

  /// The content of an entry, or nothing if it is missing. Marks the entry as used.
  std::optional<std::string> Read(std::string_view key);
  /// Returns whether the entry was written; warns if the folder cannot be written to.
  bool Write(std::string_view key, std::string_view content);
  void Remove(std::string_view key);
  /// Explains a cache miss in words: which part of the key no entry has, or that the entry was
  /// evicted. Reads the keys of all entries, and ignores an entry of `key` written meanwhile.
  std::string WhyMissing(std::string_view key) const;

  /// The exclusive right to make an entry, among threads and processes. It ends with its holder,
  /// even if the holder crashes and forked children of it live on.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Claim& operator=(Claim&& other) noexcept {
      std::swap(file_, other.file_);
      return *this;
    }
    ~Claim();
    explicit operator bool() const { return file_ >= 0; }

   private:
    friend class DiskCache;
    explicit Claim(const std::filesystem::path& locks);

    int file_ = -1;
  };
  /// Waits while another holder has the right to make this entry, up to `patience`. Returns an
  /// empty claim if there is no lock to be had.
  Claim MakeClaim(std::string_view key,
                  std::chrono::milliseconds patience = std::chrono::minutes(10));

  struct Entry {
    std::filesystem::path path;
    int64_t bytes = 0;
    double last_use = 0;  // in seconds since the epoch
    std::string key;      // empty if the entry is damaged
    std::string content;  // of records ("record: …") only, which are short
  };
  /// Lists the entries by last use, oldest first. With `check` also verifies the checksums, so that
  /// damaged contents are found.
  static std::vector<Entry> List(const std::filesystem::path& folder, bool check);
  /// Removes all entries with intact magic bytes and all temporary files. Returns the number of
  /// entries removed.
  static size_t Clear(const std::filesystem::path& folder);

 private:
  std::filesystem::path PathOf(std::string_view key) const;
  void Evict();
  /// Warns once per cache; always returns false.
  bool Complain(const std::string& what, int error);

  const Settings settings_;
  std::mutex mutex_;
  int64_t bytes_ = -1;  // size of all entries as far as this process knows; -1: unknown
  int writes_ = 0;      // writes since the sizes were counted
  bool complained_ = false;
};

/// The folder of torch_xla below the user's cache folder; empty if there is none.
std::filesystem::path UserCacheFolder();

/// The cache of this process, or null if it has none. The first call reads the environment
/// (XLA_PERSISTENT_CACHE_PATH, …_READ_ONLY, …_MAX_BYTES), unless InitializeDiskCache was called
/// before.
std::shared_ptr<DiskCache> GetDiskCache();
/// Sets the cache of this process from now on; an empty folder means no cache.
void InitializeDiskCache(std::filesystem::path folder, bool read_only);

}  // namespace torch_xla::exec
