#include "exec/disk_cache.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "debug/environment.h"
#include "debug/metrics.h"
#include "ir/dump.h"

namespace torch_xla::exec {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kRecord = "record:";
constexpr std::string_view kLocks = "locks.XLAprog1";
// The names of evicted entries, one per line. The file is started anew when it becomes too long.
constexpr std::string_view kEvicted = "evicted.XLAprog1";
constexpr off_t kMaxEvictedBytes = 1 << 20;
// Other processes write to the folder as well, so the sizes are counted again after this many
// writes of this process.
constexpr int kWritesBetweenCounts = 16;

struct Header {
  std::array<char, 8> magic;
  uint64_t key_bytes, content_bytes;
  ir::Hash128 checksum;  // of key and content
};
constexpr std::array<char, 8> kMagic = {'X', 'L', 'A', 'p', 'r', 'o', 'g', '1'};

ir::Hash128 HashOf(std::string_view a, std::string_view b = {}) {
  ir::Hasher hasher;
  hasher.AddText(a);
  hasher.AddText(b);
  return hasher.Finish();
}

/// A file descriptor that is closed at the end of its life.
class File {
 public:
  /// Does not block: the path may name a pipe.
  File(const fs::path& path, int flags)
      : file_(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600)) {}
  ~File() {
    if (file_ >= 0) close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int get() const { return file_; }
  int Release() { return std::exchange(file_, -1); }
  explicit operator bool() const { return file_ >= 0; }

  bool ReadAll(char* to, size_t size) const {
    while (size > 0) {
      const ssize_t count = read(file_, to, size);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      to += count;
      size -= static_cast<size_t>(count);
    }
    return true;
  }
  bool WriteAll(std::string_view from) const {
    while (!from.empty()) {
      const ssize_t count = write(file_, from.data(), from.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      from.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }

 private:
  int file_;
};

struct Parts {
  std::string key, content;
};

/// The parts of an entry, or nothing if the entry is damaged.
std::optional<Parts> ReadEntry(const File& file) {
  struct stat status{};
  Header header;
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < static_cast<off_t>(sizeof header) ||
      !file.ReadAll(reinterpret_cast<char*>(&header), sizeof header) || header.magic != kMagic) {
    return std::nullopt;
  }
  const uint64_t rest = static_cast<uint64_t>(status.st_size) - sizeof header;
  if (header.key_bytes > rest || header.content_bytes != rest - header.key_bytes) {
    return std::nullopt;
  }
  Parts parts{std::string(header.key_bytes, '\0'), std::string(header.content_bytes, '\0')};
  if (!file.ReadAll(parts.key.data(), parts.key.size()) ||
      !file.ReadAll(parts.content.data(), parts.content.size()) ||
      HashOf(parts.key, parts.content) != header.checksum) {
    return std::nullopt;
  }
  return parts;
}

enum class Name { kOther, kEntry, kTemporary };

/// Tells by its name whether a file may belong to the cache: "<32 hexadecimal digits>.<word>", with
/// ".<number>.<number>.tmp" appended while it is written. The folder may contain other files.
Name NameOf(const fs::path& path) {
  constexpr size_t kDigits = 32;
  const std::string name = path.filename().string();
  const std::string_view text = name;
  if (text.find_first_not_of("0123456789abcdef") != kDigits || text[kDigits] != '.') {
    return Name::kOther;
  }
  std::string_view rest = text.substr(kDigits + 1);
  const size_t word = rest.find('.');
  if (word == 0 || rest.empty()) return Name::kOther;
  if (word == rest.npos) return Name::kEntry;
  rest.remove_prefix(word);
  if (!rest.ends_with(kTemporary)) return Name::kOther;
  rest.remove_suffix(kTemporary.size());
  const bool numbers = std::all_of(rest.begin(), rest.end(),
                                   [](unsigned char c) { return c == '.' || std::isdigit(c); });
  return numbers && std::count(rest.begin(), rest.end(), '.') == 2 ? Name::kTemporary
                                                                   : Name::kOther;
}

/// Whether a file with a name of the cache also begins with the magic bytes. A temporary file may
/// still be shorter than these.
bool IsOurs(const fs::path& path, Name name) {
  struct stat status{};
  std::array<char, kMagic.size()> magic{};
  const File file(path, O_RDONLY);
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const size_t size = std::min<size_t>(status.st_size, magic.size());
  if (size < magic.size() && name != Name::kTemporary) return false;
  return file.ReadAll(magic.data(), size) &&
         std::equal(magic.begin(), magic.begin() + size, kMagic.begin());
}

/// Removes a file if it belongs to the cache; returns whether it was removed.
bool RemoveOurs(const fs::path& path, Name name) {
  return IsOurs(path, name) && unlink(path.c_str()) == 0;
}

/// Calls `visit` for each file of a folder; stops silently at an error.
template <typename Visit>
void ForEachFile(const fs::path& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    visit(it->path());
  }
}

std::error_code MakeFolder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder, error)) return {};
  // Whoever can write to the folder can make this process run machine code, so only the owner gets
  // access.
  if (fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
  return error;
}

double Seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The open lock files of all claims. A lock belongs to the open file, which a forked child shares,
/// so the child closes them: else it would keep the lock of a parent that has ended.
struct OpenLocks {
  std::mutex mutex;
  std::vector<int> files;
};

OpenLocks& GetOpenLocks() {
  static auto& locks = *new OpenLocks;
  static const int once = pthread_atfork([] { locks.mutex.lock(); }, [] { locks.mutex.unlock(); },
                                         [] {
                                           for (const int file : std::exchange(locks.files, {}))
                                             close(file);
                                           locks.mutex.unlock();
                                         });
  static_cast<void>(once);  // Without memory for the handlers, children keep the files.
  return locks;
}

}  // namespace

DiskCache::Claim::Claim(const fs::path& locks) {
  OpenLocks& open = GetOpenLocks();
  std::lock_guard lock(open.mutex);
  file_ = File(locks, O_RDWR | O_CREAT).Release();
  if (file_ >= 0) open.files.push_back(file_);
}

DiskCache::Claim::~Claim() {
  if (file_ < 0) return;
  OpenLocks& open = GetOpenLocks();
  std::lock_guard lock(open.mutex);
  // In a forked child it is closed already.
  if (std::erase(open.files, file_) > 0) close(file_);
}

fs::path DiskCache::PathOf(std::string_view key) const {
  return settings_.folder /
         (ir::ToHex(HashOf(key)) + "." + std::string(key.substr(0, key.find(':'))));
}

std::optional<std::string> DiskCache::Read(std::string_view key) {
  const File file(PathOf(key), O_RDONLY);
  if (!file) return std::nullopt;
  std::optional<Parts> parts = ReadEntry(file);
  if (!parts || parts->key != key) return std::nullopt;
  if (!settings_.read_only) futimens(file.get(), nullptr);  // Marks it as used now.
  return std::move(parts->content);
}

bool DiskCache::Complain(const std::string& what, int error) {
  std::lock_guard lock(mutex_);
  if (std::exchange(complained_, true)) return false;
  TORCH_WARN(
      "compiled programs cannot be ", what, " '", settings_.folder.string(),
      "': ", std::strerror(error),
      ". Each process compiles them again. Set XLA_PERSISTENT_CACHE_PATH to another folder, or "
      "to an empty value for no cache.");
  return false;
}

void DiskCache::Check() {
  std::error_code error;
  if (!settings_.read_only) error = MakeFolder(settings_.folder);
  if (!error && !fs::is_directory(settings_.folder, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  const int mode = settings_.read_only ? R_OK | X_OK : W_OK | X_OK;
  if (!error && access(settings_.folder.c_str(), mode) != 0) {
    error.assign(errno, std::generic_category());
  }
  if (error) Complain(settings_.read_only ? "read from" : "written to", error.value());
}

bool DiskCache::Write(std::string_view key, std::string_view content) {
  if (settings_.read_only) return false;
  if (const std::error_code error = MakeFolder(settings_.folder)) {
    return Complain("written to", error.value());
  }
  const fs::path path = PathOf(key);
  fs::path temporary = path;
  temporary += "." + std::to_string(getpid()) + "." + std::to_string(std::random_device{}()) +
               std::string(kTemporary);
  const Header header{kMagic, key.size(), content.size(), HashOf(key, content)};
  bool whole = false;
  {
    const File file(temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (!file) return Complain("written to", errno);
    whole = file.WriteAll({reinterpret_cast<const char*>(&header), sizeof header}) &&
            file.WriteAll(key) && file.WriteAll(content);
  }
  if (!whole || rename(temporary.c_str(), path.c_str()) != 0) {
    const int code = errno;
    unlink(temporary.c_str());
    return Complain("written to", code);
  }
  std::lock_guard lock(mutex_);
  if (bytes_ >= 0) bytes_ += static_cast<int64_t>(sizeof header + key.size() + content.size());
  if (bytes_ < 0 || bytes_ > settings_.max_bytes || ++writes_ >= kWritesBetweenCounts) Evict();
  return true;
}

void DiskCache::Remove(std::string_view key) {
  if (!settings_.read_only) RemoveOurs(PathOf(key), Name::kEntry);
}

void DiskCache::Evict() {
  static auto& evicted = *new debug::Counter("PersistentCacheEvict");
  writes_ = 0;
  bytes_ = 0;
  std::vector<Entry> entries;
  ForEachFile(settings_.folder, [&](const fs::path& path) {
    const Name name = NameOf(path);
    struct stat status{};
    if (name == Name::kOther) return;
    if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    if (name == Name::kTemporary) {
      // A process that ended in the middle of a write leaves its temporary file behind.
      const bool old = Seconds(status.st_mtim) + 3600 < static_cast<double>(time(nullptr));
      if (old) RemoveOurs(path, name);
    } else {
      entries.push_back({path, status.st_size, Seconds(status.st_mtim), {}});
      bytes_ += status.st_size;
    }
  });
  if (bytes_ <= settings_.max_bytes) return;
  // Files that do not belong to the cache cannot be evicted and must not cause more evictions.
  std::erase_if(entries, [&](const Entry& entry) {
    const bool others = !IsOurs(entry.path, Name::kEntry);
    if (others) bytes_ -= entry.bytes;
    return others;
  });
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
  std::string names;
  // Evicts more than necessary, so that not every write has to search for the oldest entries.
  for (const Entry& entry : entries) {
    if (bytes_ <= settings_.max_bytes - settings_.max_bytes / 10) break;
    if (unlink(entry.path.c_str()) != 0) continue;
    bytes_ -= entry.bytes;
    evicted.Add();
    names += entry.path.filename().string() + "\n";
  }
  struct stat status{};
  const fs::path list = settings_.folder / kEvicted;
  const bool full = stat(list.c_str(), &status) == 0 && status.st_size > kMaxEvictedBytes;
  const File file(list, O_WRONLY | O_CREAT | O_APPEND | (full ? O_TRUNC : 0));
  if (file) file.WriteAll(names);
}

std::string DiskCache::WhyMissing(std::string_view key) const {
  auto lines_of = [](std::string_view text) {
    std::map<std::string, std::string, std::less<>> lines;
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      const size_t end = std::min(line.find(':'), line.find('='));
      const std::string_view name = line.substr(0, end);
      // The options are the last field. They are bytes and may contain line breaks, so take all of
      // the rest.
      const bool last = name == "options";
      std::string& value = lines[std::string(name)];
      value += line.substr(std::min(line.size(), name.size() + 1));
      if (last) {
        value += text;
        break;
      }
    }
    return lines;
  };
  const auto wanted = lines_of(key);
  {
    const File file(settings_.folder / kEvicted, O_RDONLY);
    struct stat status{};
    std::string names;
    if (file && fstat(file.get(), &status) == 0) {
      names.resize(static_cast<size_t>(status.st_size));
      if (file.ReadAll(names.data(), names.size()) &&
          names.find(PathOf(key).filename().string()) != names.npos) {
        return "evicted: the entry was removed to make room (XLA_PERSISTENT_CACHE_MAX_BYTES)";
      }
    }
  }
  size_t programs = 0;
  std::vector<std::string> differing;
  for (const Entry& entry : List(settings_.folder, /*check=*/false)) {
    if (!entry.key.starts_with("program:") || entry.key == key) continue;
    ++programs;
    const auto there = lines_of(entry.key);
    if (there.at("program") != wanted.at("program")) continue;
    std::vector<std::string> parts;
    for (const auto& [name, value] : wanted) {
      if (auto it = there.find(name); it == there.end() || it->second != value) {
        parts.push_back(name);
      }
    }
    for (const auto& [name, value] : there) {
      if (!wanted.contains(name)) parts.push_back(name);
    }
    if (differing.empty() || parts.size() < differing.size()) differing = std::move(parts);
  }
  if (programs == 0) return "empty: there is no program in " + settings_.folder.string();
  if (differing.empty())
    return "program: none of the " + std::to_string(programs) + " entries is this program";
  std::string text;
  for (const std::string& part : differing) text += (text.empty() ? "" : ", ") + part;
  return text + ": this program is on disk, but compiled for another";
}

DiskCache::Claim DiskCache::MakeClaim(std::string_view key, std::chrono::milliseconds patience) {
  if (settings_.read_only) return {};
  // Each entry is locked through one byte of a common lock file, so that no lock remains when its
  // holder ends. The lock belongs to the open file and not to the process, since threads of one
  // process compete as well.
  if (MakeFolder(settings_.folder)) return {};
  Claim claim(settings_.folder / kLocks);
  if (!claim) return {};
  struct flock range{};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(HashOf(key).low >> 2);
  range.l_len = 1;
  const auto end = std::chrono::steady_clock::now() + patience;
  for (auto pause = std::chrono::milliseconds(1); fcntl(claim.file_, F_OFD_SETLK, &range) != 0;) {
    // This file system has no locks.
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return {};
    if (std::chrono::steady_clock::now() >= end) return {};
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(50));
  }
  return claim;
}

std::vector<DiskCache::Entry> DiskCache::List(const fs::path& folder, bool check) {
  std::vector<Entry> entries;
  ForEachFile(folder, [&](const fs::path& path) {
    if (NameOf(path) != Name::kEntry) return;
    const File file(path, O_RDONLY);
    struct stat status{};
    if (!file || fstat(file.get(), &status) != 0) return;  // Evicted meanwhile.
    if (!S_ISREG(status.st_mode)) return;
    Entry entry{path, status.st_size, Seconds(status.st_mtim), {}};
    if (check) {
      if (auto parts = ReadEntry(file)) {
        entry.key = std::move(parts->key);
        if (entry.key.starts_with(kRecord)) entry.content = std::move(parts->content);
      }
    } else {
      Header header;
      if (file.ReadAll(reinterpret_cast<char*>(&header), sizeof header) && header.magic == kMagic &&
          header.key_bytes < static_cast<uint64_t>(status.st_size)) {
        entry.key.resize(header.key_bytes);
        if (!file.ReadAll(entry.key.data(), entry.key.size())) entry.key.clear();
        const size_t rest = status.st_size - sizeof header - entry.key.size();
        if (entry.key.starts_with(kRecord) && header.content_bytes == rest) {
          entry.content.resize(rest);
          if (!file.ReadAll(entry.content.data(), rest)) entry.content.clear();
        }
      }
    }
    entries.push_back(std::move(entry));
  });
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
  return entries;
}

size_t DiskCache::Clear(const fs::path& folder) {
  size_t removed = 0;
  ForEachFile(folder, [&](const fs::path& path) {
    const Name name = NameOf(path);
    if (name != Name::kOther && RemoveOurs(path, name) && name == Name::kEntry) ++removed;
  });
  return removed;
}

// ---------------------------------------------------------------- the cache of this process

namespace {

struct Configured {
  std::mutex mutex;
  bool decided = false;
  std::shared_ptr<DiskCache> cache;
};

Configured& GetConfigured() {
  static auto& configured = *new Configured;
  return configured;
}

const char* NonEmpty(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

/// The folder of the cache; empty if there shall be no cache.
fs::path FolderOfEnvironment() {
  if (std::getenv("XLA_PERSISTENT_CACHE_PATH")) return debug::EnvPath("XLA_PERSISTENT_CACHE_PATH");
  const fs::path caches = UserCacheFolder();
  return caches.empty() ? caches : caches / "programs";
}

std::shared_ptr<DiskCache> Make(fs::path folder, bool read_only) {
  if (folder.empty()) return nullptr;
  DiskCache::Settings settings{.folder = std::move(folder), .read_only = read_only};
  if (const char* text = NonEmpty("XLA_PERSISTENT_CACHE_MAX_BYTES")) {
    char* end = nullptr;
    errno = 0;
    const long long bytes = std::strtoll(text, &end, 10);
    if (*end == '\0' && errno == 0 && bytes > 0) {
      settings.max_bytes = bytes;
    } else {
      TORCH_WARN("XLA_PERSISTENT_CACHE_MAX_BYTES: expected a number of bytes above 0, got '", text,
                 "'; the limit stays ", settings.max_bytes);
    }
  }
  return std::make_shared<DiskCache>(std::move(settings));
}

}  // namespace

fs::path UserCacheFolder() {
  const char* caches = NonEmpty("XDG_CACHE_HOME");
  const char* home = NonEmpty("HOME");
  if (!caches && !home) return {};
  return (caches ? fs::path(caches) : fs::path(home) / ".cache") / "torch_xla";
}

std::shared_ptr<DiskCache> GetDiskCache() {
  Configured& configured = GetConfigured();
  std::lock_guard lock(configured.mutex);
  if (!std::exchange(configured.decided, true)) {
    configured.cache =
        Make(FolderOfEnvironment(), debug::EnvFlag("XLA_PERSISTENT_CACHE_READ_ONLY"));
  }
  return configured.cache;
}

void InitializeDiskCache(fs::path folder, bool read_only) {
  Configured& configured = GetConfigured();
  std::lock_guard lock(configured.mutex);
  configured.cache = Make(std::move(folder), read_only);
  configured.decided = true;
}

}  // namespace torch_xla::exec
