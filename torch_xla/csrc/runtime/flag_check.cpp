#include "runtime/flag_check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>

#include "runtime/errors.h"

namespace torch_xla::runtime {
namespace {

/// Runs `start` in a child process with these flags. Returns what the child wrote to the standard
/// error if it did not exit normally; empty if it did, or if it took too long.
std::string LastWords(const char* flags, const std::function<void()>& start) {
  constexpr unsigned kSeconds = 20;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGALRM, SIG_DFL);
    alarm(kSeconds);
    setenv("XLA_FLAGS", flags, /*overwrite=*/1);
    try {
      start();
    } catch (...) {
      // The caller will meet the same error.
    }
    _exit(0);
  }
  close(ends[1]);
  std::string words;
  char buffer[4096];
  for (ssize_t n; child > 0 && (n = read(ends[0], buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) words.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const bool lived = child < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return lived || (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) ? std::string() : words;
}

/// XLA's message about the flags without the log prefix; empty if the message is about something
/// else.
std::string Reason(const std::string& words) {
  const size_t at = words.find("parse_flags_from_env");
  if (at == words.npos) return {};
  size_t begin = words.find("] ", at);
  begin = begin == words.npos ? at : begin + 2;
  return words.substr(begin, words.find('\n', begin) - begin);
}

}  // namespace

void CheckXlaFlags(const std::function<void()>& start) {
  const char* flags = std::getenv("XLA_FLAGS");
  if (flags == nullptr || *flags == '\0') return;
  std::string reason = Reason(LastWords(flags, start));
  if (reason.empty()) return;
  if (reason.find("Flags::Parse") != reason.npos) {
    // All flags are known; XLA does not say which value is wrong.
    reason = "a value is not of its flag's type";
    std::istringstream words(flags);
    for (std::string word; words >> word;) {
      if (Reason(LastWords(word.c_str(), start)).empty()) continue;
      reason = "the value in " + word + " is not of the flag's type";
      break;
    }
  }
  throw InvalidArgument("XLA refuses XLA_FLAGS='" + std::string(flags) + "': " + reason);
}

}  // namespace torch_xla::runtime
