// exec/disk_cache: entries that are whole or not there, one maker for each, and a bound.
#include "exec/disk_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "debug/metrics.h"

namespace torch_xla::exec {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class DiskCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "disk_cache_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    folder_ = base_ / "a" / "b";
  }
  void TearDown() override {
    fs::permissions(base_, fs::perms::owner_all);
    fs::remove_all(base_);
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const DiskCache::Entry& entry : DiskCache::List(folder_, false)) {
      files.push_back(entry.path);
    }
    return files;
  }
  void Overwrite(const fs::path& path, const std::string& content) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  static std::string Content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path base_, folder_;
};

TEST_F(DiskCacheTest, GivesBackWhatWasWritten) {
  DiskCache cache({.folder = folder_});
  EXPECT_EQ(cache.Read("key"), std::nullopt);
  const std::string content("\0binary\xff", 8);
  cache.Write("key", content);
  cache.Write("empty", "");
  EXPECT_EQ(cache.Read("key"), content);
  EXPECT_EQ(cache.Read("empty"), "");
  EXPECT_EQ(cache.Read("other"), std::nullopt);
  EXPECT_EQ(DiskCache({.folder = folder_}).Read("key"), content);
  cache.Write("key", "new");
  EXPECT_EQ(cache.Read("key"), "new");
  cache.Remove("key");
  EXPECT_EQ(cache.Read("key"), std::nullopt);
  // Others cannot put machine code there.
  EXPECT_EQ(fs::status(folder_).permissions() & fs::perms::all, fs::perms::owner_all);
}

TEST_F(DiskCacheTest, WhatIsDamagedIsNotThere) {
  DiskCache cache({.folder = folder_});
  cache.Write("key", std::string(1000, 'x'));
  const fs::path path = Files().at(0);
  const std::string whole = Content(path);
  for (size_t size :
       {size_t{0}, size_t{7}, size_t{40}, size_t{43}, size_t{500}, whole.size() - 1}) {
    Overwrite(path, whole.substr(0, size));
    EXPECT_EQ(cache.Read("key"), std::nullopt) << size;
  }
  Overwrite(path, whole + "x");
  EXPECT_EQ(cache.Read("key"), std::nullopt);
  for (size_t i = 0; i < whole.size(); i += 13) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    Overwrite(path, flipped);
    EXPECT_EQ(cache.Read("key"), std::nullopt) << i;
    EXPECT_EQ(DiskCache::List(folder_, /*check=*/true).at(0).key, "") << i;
  }
  Overwrite(path, whole);
  EXPECT_EQ(cache.Read("key"), std::string(1000, 'x'));
  EXPECT_EQ(DiskCache::List(folder_, /*check=*/true).at(0).key, "key");
  // Another's entry under this name.
  cache.Write("other", "content");
  for (const fs::path& file : Files()) {
    if (file != path) fs::rename(file, path);
  }
  EXPECT_EQ(cache.Read("key"), std::nullopt);
}

TEST_F(DiskCacheTest, ReadOnlyWritesNothing) {
  DiskCache(DiskCache::Settings{.folder = folder_}).Write("key", "content");
  DiskCache cache({.folder = folder_, .read_only = true});
  cache.Write("other", "content");
  cache.Remove("key");
  auto claim = cache.MakeClaim("key");
  EXPECT_EQ(cache.Read("key"), "content");
  EXPECT_EQ(cache.Read("other"), std::nullopt);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(DiskCacheTest, TheLeastRecentlyUsedGo) {
  DiskCache cache({.folder = folder_, .max_bytes = 10'500});
  std::string content(1000, 'x');
  auto age = [&](const std::string& key, int seconds) {
    for (const DiskCache::Entry& entry : DiskCache::List(folder_, false)) {
      if (entry.key != key) continue;
      const timespec time{::time(nullptr) - seconds, 0};
      const timespec times[] = {time, time};
      utimensat(AT_FDCWD, entry.path.c_str(), times, 0);
    }
  };
  for (int i = 0; i < 9; ++i) {
    cache.Write(std::to_string(i), content);
    age(std::to_string(i), 1000 - i);
  }
  EXPECT_EQ(Files().size(), 9u);
  EXPECT_EQ(cache.Read("0"), content);  // Used now.
  cache.Write("9", content);
  cache.Write("10", content);
  EXPECT_EQ(cache.Read("0"), content);
  EXPECT_EQ(cache.Read("1"), std::nullopt);
  EXPECT_EQ(cache.Read("10"), content);
  EXPECT_EQ(Files().size(), 9u);
}

TEST_F(DiskCacheTest, OthersFilesStay) {
  DiskCache cache({.folder = folder_, .max_bytes = 10'000});
  cache.Write("first", "content");
  std::vector<fs::path> others;
  const std::string digits = "0123456789abcdef0123456789abcdef";
  for (const std::string& name :
       {std::string("checkpoint.pt"), std::string("old.tmp"), digits, digits + ".program",
        digits + ".program.1.2.tmp", digits + ".program.x.2.tmp", digits + "0.program"}) {
    others.push_back(folder_ / name);
    Overwrite(others.back(), std::string(5000, 'x'));
    const timespec times[] = {{1, 0}, {1, 0}};
    utimensat(AT_FDCWD, others.back().c_str(), times, 0);
  }
  for (int i = 0; i < 20; ++i) cache.Write(std::to_string(i), std::string(1000, 'y'));
  EXPECT_EQ(cache.Read("first"), std::nullopt);
  EXPECT_NE(cache.Read("15"), std::nullopt);  // as many as would stay without those files
  EXPECT_GT(DiskCache::Clear(folder_), 1u);
  for (const fs::path& path : others) EXPECT_EQ(fs::file_size(path), 5000u) << path;
}

TEST_F(DiskCacheTest, OneClaimAtATime) {
  // Two processes have a cache each.
  DiskCache first({.folder = folder_}), second({.folder = folder_});
  std::atomic<int> makers{0}, made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      DiskCache& cache = i % 2 ? first : second;
      auto claim = cache.MakeClaim("key");
      EXPECT_EQ(++makers, 1);
      if (!cache.Read("key")) {
        std::this_thread::sleep_for(20ms);
        ++made;
        cache.Write("key", "content");
      }
      --makers;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  // Another key is another's business.
  auto held = first.MakeClaim("key");
  const auto start = std::chrono::steady_clock::now();
  auto other = second.MakeClaim("other");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_F(DiskCacheTest, PatienceEnds) {
  DiskCache holder({.folder = folder_}), waiting({.folder = folder_});
  auto held = holder.MakeClaim("key");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(waiting.MakeClaim("key", 100ms));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 100ms);
}

TEST_F(DiskCacheTest, AClaimEndsWithItsProcess) {
  DiskCache cache({.folder = folder_});
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    auto claim = DiskCache({.folder = folder_}).MakeClaim("key");
    // Like the worker of a DataLoader, a child of its own lives on.
    if (fork() == 0) {
      alarm(60);
      pause();
      _exit(0);
    }
    [[maybe_unused]] ssize_t count = write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::thread killer([&] {
    std::this_thread::sleep_for(100ms);
    kill(child, SIGKILL);
  });
  const auto start = std::chrono::steady_clock::now();
  auto claim = cache.MakeClaim("key");
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, 50ms);
  EXPECT_LT(waited, 30s);
  killer.join();
  int status = 0;
  waitpid(child, &status, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(DiskCacheTest, AFolderThatCannotBeWrittenIsNoError) {
  // A file stands in its place: root may write anywhere else.
  Overwrite(base_ / "a", "no folder");
  DiskCache cache({.folder = folder_});
  testing::internal::CaptureStderr();
  cache.Write("key", "content");
  cache.Write("other", "content");
  auto claim = cache.MakeClaim("key");
  EXPECT_EQ(cache.Read("key"), std::nullopt);
  const std::string told = testing::internal::GetCapturedStderr();
  const size_t first = told.find("cannot be written to");
  EXPECT_NE(first, std::string::npos) << told;
  EXPECT_EQ(told.find("cannot be written to", first + 1), std::string::npos) << told;
}

}  // namespace
}  // namespace torch_xla::exec
