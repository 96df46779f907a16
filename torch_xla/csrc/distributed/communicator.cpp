#include "distributed/communicator.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <thread>

namespace torch_xla::distributed {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A payload of up to this size from all other replicas together travels with the replicas'
// announcements, since few messages matter most. For larger payloads the number of bytes matters
// most.
constexpr int64_t kInlineBytes = 512 << 10;
// Data is reduced by segments: one segment is reduced while the next ones are in transit.
constexpr int64_t kSegmentBytes = 4 << 20;

/// Tags of the messages between two replicas. Messages with the same tag stay in order.
enum Tag : int { kData = 1, kReduced = 2, kMessages = 3 };

// Size of the header before a message, which describes the message.
constexpr int64_t kHeaderBytes = 512;

template <typename T>
void PickUnsigned(const at::Tensor& acc, const at::Tensor& x, bool larger) {
  auto* to = static_cast<T*>(acc.data_ptr());
  auto* from = static_cast<const T*>(x.data_ptr());
  for (int64_t i = 0; i < acc.numel(); ++i) {
    to[i] = larger ? std::max(to[i], from[i]) : std::min(to[i], from[i]);
  }
}

/// Computes acc = acc op x; both are contiguous.
void Combine(at::Tensor acc, at::Tensor x, Reduction reduction) {
  // PyTorch has hardly any kernels for these dtypes. Except for comparisons the signed operation
  // gives the same bits.
  const c10::ScalarType dtype = acc.scalar_type();
  const c10::ScalarType as = dtype == at::kUInt16   ? at::kShort
                             : dtype == at::kUInt32 ? at::kInt
                             : dtype == at::kUInt64 ? at::kLong
                                                    : dtype;
  if (as != dtype) {
    if (reduction == Reduction::kMin || reduction == Reduction::kMax) {
      const bool larger = reduction == Reduction::kMax;
      if (dtype == at::kUInt16) return PickUnsigned<uint16_t>(acc, x, larger);
      if (dtype == at::kUInt32) return PickUnsigned<uint32_t>(acc, x, larger);
      return PickUnsigned<uint64_t>(acc, x, larger);
    }
    acc = acc.view(as);
    x = x.view(as);
  }
  switch (reduction) {
    case Reduction::kSum:
      at::add_out(acc, acc, x);
      return;
    case Reduction::kMul:
      at::mul_out(acc, acc, x);
      return;
    case Reduction::kAnd:
      at::bitwise_and_out(acc, acc, x);
      return;
    case Reduction::kOr:
      at::bitwise_or_out(acc, acc, x);
      return;
    case Reduction::kXor:
      at::bitwise_xor_out(acc, acc, x);
      return;
    case Reduction::kMin:
      at::minimum_out(acc, acc, x);
      return;
    case Reduction::kMax:
      at::maximum_out(acc, acc, x);
      return;
  }
}

at::Tensor Bytes(void* data, int64_t size) { return at::from_blob(data, {size}, at::kByte); }
at::Tensor Bytes(const at::Tensor& tensor) {
  return Bytes(tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()));
}

void CopyBytes(void* to, const at::Tensor& from) {
  if (to != from.data_ptr() && from.nbytes() > 0) std::memcpy(to, from.data_ptr(), from.nbytes());
}

int64_t TotalBytes(const std::vector<at::Tensor>& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

void Pack(const std::vector<at::Tensor>& tensors, char* to) {
  for (const at::Tensor& tensor : tensors) {
    CopyBytes(to, tensor);
    to += tensor.nbytes();
  }
}

void Unpack(const char* from, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
}

int64_t IndexOf(const std::vector<int64_t>& members, int64_t rank) {
  return std::find(members.begin(), members.end(), rank) - members.begin();
}

/// The rank that `rank` receives from in a permutation, or -1.
int64_t SourceOf(const Collective& collective, int64_t rank) {
  for (size_t i = 0; i < collective.arguments.size(); i += 2) {
    if (collective.arguments[i + 1] == rank) return collective.arguments[i];
  }
  return -1;
}

/// Computes the collective when all payloads are here: `gathered` holds the payloads of the members
/// in their order.
void Local(const Collective& collective, const std::vector<int64_t>& members, int64_t rank,
           char* gathered, int64_t size, const std::vector<at::Tensor>& inputs,
           const std::vector<at::Tensor>& outputs) {
  const auto count = static_cast<int64_t>(members.size());
  const int64_t me = IndexOf(members, rank);
  const at::Tensor& out = outputs[0];
  const auto out_size = static_cast<int64_t>(out.nbytes());
  switch (collective.kind) {
    case CollectiveKind::kAllReduce: {
      const c10::ScalarType dtype = inputs[0].scalar_type();
      const int64_t length = size / static_cast<int64_t>(inputs[0].element_size());
      // Combine the second half with the first, which needs few calls.
      for (int64_t left = count; left > 1;) {
        const int64_t half = left / 2;
        left -= half;
        Combine(at::from_blob(gathered, {half * length}, dtype),
                at::from_blob(gathered + left * size, {half * length}, dtype),
                collective.reduction);
      }
      Unpack(gathered, outputs);
      return;
    }
    case CollectiveKind::kAllGather:
      std::memcpy(out.data_ptr(), gathered, out.nbytes());
      return;
    case CollectiveKind::kAllToAll: {
      const int64_t piece = size / count;
      auto* to = static_cast<char*>(out.data_ptr());
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * piece, gathered + i * size + me * piece, piece);
      }
      return;
    }
    case CollectiveKind::kReduceScatter:
      std::memcpy(out.data_ptr(), gathered + me * out_size, out_size);
      for (int64_t i = 1; i < count; ++i) {
        Combine(out,
                at::from_blob(gathered + i * size + me * out_size, out.sizes(), out.scalar_type()),
                collective.reduction);
      }
      return;
    case CollectiveKind::kPermute: {
      const int64_t source = SourceOf(collective, rank);
      if (source < 0) {
        std::memset(out.data_ptr(), 0, out.nbytes());
      } else {
        std::memcpy(out.data_ptr(), gathered + IndexOf(members, source) * size, size);
      }
      return;
    }
    case CollectiveKind::kBroadcast:
      Unpack(gathered + IndexOf(members, collective.arguments[0]) * size, outputs);
      return;
    case CollectiveKind::kTransfer:
      break;
  }
}

/// Sends and receives the messages of one collective among `members`.
class Transfers {
 public:
  Transfers(c10d::Backend& bulk, PeerMesh& mesh, TransferWatcher& watcher,
            const std::vector<int64_t>& members)
      : bulk_(bulk),
        mesh_(mesh),
        watcher_(watcher),
        members_(members),
        me_(IndexOf(members, mesh.rank())) {}

  int64_t me() const { return me_; }
  int64_t count() const { return static_cast<int64_t>(members_.size()); }

  /// `data` must stay alive until the work is done.
  WorkPtr StartSend(const at::Tensor& data, int64_t member, int tag) {
    WorkPtr work;
    Guarded(member, [&] {
      std::vector<at::Tensor> tensors{Bytes(data)};
      work = bulk_.send(tensors, static_cast<int>(members_[member]), tag);
    });
    return work;
  }
  void Send(const at::Tensor& data, int64_t member, Tag tag = kData) {
    if (data.numel() > 0) sends_.emplace_back(member, StartSend(data, member, tag));
  }
  /// Returns null if there is nothing to receive.
  WorkPtr Receive(const at::Tensor& data, int64_t member, int tag = kData) {
    if (data.numel() == 0) return {};
    WorkPtr work;
    Guarded(member, [&] {
      std::vector<at::Tensor> tensors{Bytes(data)};
      work = bulk_.recv(tensors, static_cast<int>(members_[member]), tag);
    });
    return work;
  }
  void Wait(const WorkPtr& work, int64_t member) {
    if (!work) return;
    Guarded(member, [&] { watcher_.Wait(work, static_cast<int>(members_[member])); });
  }
  /// Like Wait, for a message that the member may never send.
  void WaitForMessage(const WorkPtr& work, int64_t member) {
    const int rank = static_cast<int>(members_[member]);
    try {
      Guarded(member, [&] { watcher_.Wait(work, rank, true); });
    } catch (const ReplicaError&) {
      const std::string why = mesh_.WhyUnavailable(rank);
      if (why.empty()) throw;
      throw ReplicaError("rank " + std::to_string(mesh_.rank()) +
                         " (this one) waits for a message, but " + why);
    }
  }
  void WaitForSends() {
    for (auto& [member, work] : sends_) Wait(work, member);
    sends_.clear();
  }

 private:
  template <typename F>
  void Guarded(int64_t member, F f) {
    try {
      f();
    } catch (const std::exception& error) {
      // A replica's two connections break in either order, so wait a little for the second one.
      std::vector<int> ended;
      for (int i = 0; i < 20 && ended.empty(); ++i) {
        ended = mesh_.Ended();
        if (ended.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      throw ReplicaError(ended.empty()
                             ? "the transfer with rank " + std::to_string(members_[member]) +
                                   " failed: " + ErrorText(error)
                             : RankNames(ended) + (ended.size() == 1 ? " has" : " have") +
                                   " ended during a transfer");
    }
  }

  c10d::Backend& bulk_;
  PeerMesh& mesh_;
  TransferWatcher& watcher_;
  const std::vector<int64_t>& members_;
  const int64_t me_;
  std::vector<std::pair<int64_t, WorkPtr>> sends_;
};

at::Tensor Part(const at::Tensor& flat, int64_t begin, int64_t end) {
  begin = std::min(begin, flat.numel());
  end = std::min(end, flat.numel());
  return at::from_blob(static_cast<char*>(flat.data_ptr()) + begin * flat.element_size(),
                       {end - begin}, flat.scalar_type());
}

at::Tensor Flat(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {tensor.numel()}, tensor.scalar_type());
}

/// Reduces `own` (this member's part) with the corresponding parts of the other members, segment by
/// segment. `parts(j)` is the part that member j reduces. Calls `reduced(segment)` when a segment
/// is done.
template <typename Parts, typename Reduced>
void ReduceParts(Transfers& transfers, const at::Tensor& own, Reduction reduction, Parts parts,
                 Reduced reduced) {
  const int64_t step = kSegmentBytes / static_cast<int64_t>(own.element_size());
  const int64_t count = transfers.count(), me = transfers.me();
  at::Tensor incoming = at::empty({count - 1, own.numel()}, own.options());
  struct Expected {
    at::Tensor data;
    WorkPtr work;
    int64_t member;
  };
  std::vector<std::vector<Expected>> segments;
  for (int64_t begin = 0; begin < own.numel(); begin += step) {
    std::vector<Expected>& segment = segments.emplace_back();
    for (int64_t i = 1; i < count; ++i) {
      const int64_t member = (me + i) % count;
      at::Tensor data = Part(incoming[i - 1], begin, begin + step);
      segment.push_back({data, transfers.Receive(data, member), member});
    }
  }
  // Each member starts with a different target, so that no member is everyone's first target.
  for (int64_t begin = 0;; begin += step) {
    bool any = false;
    for (int64_t i = 1; i < count; ++i) {
      const int64_t member = (me + i) % count;
      at::Tensor part = parts(member);
      if (begin >= part.numel()) continue;
      any = true;
      transfers.Send(Part(part, begin, begin + step), member);
    }
    if (!any) break;
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    const int64_t begin = static_cast<int64_t>(s) * step;
    at::Tensor target = Part(own, begin, begin + step);
    for (const Expected& expected : segments[s]) {
      transfers.Wait(expected.work, expected.member);
      Combine(target, expected.data, reduction);
    }
    reduced(target);
  }
}

void AllReduceInPlace(Transfers& transfers, const at::Tensor& data, Reduction reduction) {
  const int64_t count = transfers.count(), me = transfers.me();
  const int64_t step = kSegmentBytes / static_cast<int64_t>(data.element_size());
  const int64_t chunk = (data.numel() + count - 1) / count;
  auto part = [&](int64_t member) { return Part(data, member * chunk, (member + 1) * chunk); };
  std::vector<std::pair<WorkPtr, int64_t>> results;
  // The results of other members replace this replica's addends: a member sends its result only
  // after it has received the addends.
  for (int64_t begin = 0; begin < chunk; begin += step) {
    for (int64_t i = 1; i < count; ++i) {
      const int64_t member = (me + i) % count;
      results.emplace_back(
          transfers.Receive(Part(part(member), begin, begin + step), member, kReduced), member);
    }
  }
  ReduceParts(transfers, part(me), reduction, part, [&](const at::Tensor& segment) {
    for (int64_t i = 1; i < count; ++i) transfers.Send(segment, (me + i) % count, kReduced);
  });
  for (auto& [work, member] : results) transfers.Wait(work, member);
  transfers.WaitForSends();
}

void ReduceScatter(Transfers& transfers, const at::Tensor& input, const at::Tensor& output,
                   Reduction reduction) {
  at::Tensor own = Flat(output);
  CopyBytes(own.data_ptr(), input[transfers.me()]);
  ReduceParts(
      transfers, own, reduction, [&](int64_t member) { return Flat(input[member]); },
      [](const at::Tensor&) {});
  transfers.WaitForSends();
}

/// Sends `outgoing(i)` to member i, and receives `incoming[i]` from it.
template <typename Outgoing>
void ExchangeParts(Transfers& transfers, const at::Tensor& incoming, Outgoing outgoing) {
  const int64_t count = transfers.count(), me = transfers.me();
  std::vector<std::pair<WorkPtr, int64_t>> expected;
  for (int64_t i = 1; i < count; ++i) {
    const int64_t member = (me + i) % count;
    expected.emplace_back(transfers.Receive(incoming[member], member), member);
  }
  for (int64_t i = 1; i < count; ++i) transfers.Send(outgoing((me + i) % count), (me + i) % count);
  CopyBytes(incoming[me].data_ptr(), outgoing(me));
  for (auto& [work, member] : expected) transfers.Wait(work, member);
  transfers.WaitForSends();
}

void Permute(Transfers& transfers, const Collective& collective,
             const std::vector<int64_t>& members, int64_t rank, const at::Tensor& input,
             const at::Tensor& output) {
  const int64_t source = SourceOf(collective, rank);
  WorkPtr expected;
  if (source == rank) {
    CopyBytes(output.data_ptr(), input);
  } else if (source < 0) {
    std::memset(output.data_ptr(), 0, output.nbytes());
  } else {
    expected = transfers.Receive(output, IndexOf(members, source));
  }
  for (size_t i = 0; i < collective.arguments.size(); i += 2) {
    const int64_t target = collective.arguments[i + 1];
    if (collective.arguments[i] == rank && target != rank) {
      transfers.Send(input, IndexOf(members, target));
    }
  }
  if (expected) transfers.Wait(expected, IndexOf(members, source));
  transfers.WaitForSends();
}

void Broadcast(Transfers& transfers, int64_t root, const at::Tensor& data) {
  if (transfers.me() != root) {
    transfers.Wait(transfers.Receive(data, root), root);
    return;
  }
  for (int64_t i = 1; i < transfers.count(); ++i) {
    transfers.Send(data, (root + i) % transfers.count());
  }
  transfers.WaitForSends();
}

}  // namespace

Communicator::Communicator(std::unique_ptr<PeerMesh> mesh, c10::intrusive_ptr<c10d::Backend> bulk)
    : mesh_(std::move(mesh)), watcher_(*mesh_), bulk_(std::move(bulk)), sent_(*mesh_) {}

void Communicator::Run(const Collective& collective, std::string_view text,
                       const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw ReplicaError(failure_);
  try {
    sent_.ThrowIfFailed();
    RunLocked(collective, text, inputs, outputs);
  } catch (const std::exception& error) {
    failure_ = ErrorText(error);
    mesh_->Abort(failure_);
    sent_.Abort(failure_);
    throw;
  }
}

void Communicator::RunLocked(const Collective& collective, std::string_view text,
                             const std::vector<at::Tensor>& inputs,
                             const std::vector<at::Tensor>& outputs) {
  if (collective.kind == CollectiveKind::kTransfer) {
    return RunTransfer(collective, text, inputs[0], outputs[0]);
  }
  const std::vector<int64_t> members = collective.GroupOf(rank(), size());
  const int64_t total = TotalBytes(inputs);
  if (total * (static_cast<int64_t>(members.size()) - 1) <= kInlineBytes) {
    std::vector<char> payload(static_cast<size_t>(total));
    Pack(inputs, payload.data());
    std::vector<char> gathered = mesh_->Exchange(members, text, payload);
    if (total > 0) Local(collective, members, rank(), gathered.data(), total, inputs, outputs);
    return;
  }
  mesh_->Exchange(members, text, {});
  Transfers transfers(*bulk_, *mesh_, watcher_, members);
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast: {
      at::Tensor data = outputs[0];
      if (outputs.size() == 1) {
        CopyBytes(data.data_ptr(), inputs[0]);
      } else {
        if (!scratch_.defined() || scratch_.numel() < total) scratch_ = at::empty(total, at::kByte);
        Pack(inputs, static_cast<char*>(scratch_.data_ptr()));
        data = at::from_blob(scratch_.data_ptr(),
                             {total / static_cast<int64_t>(inputs[0].element_size())},
                             inputs[0].scalar_type());
      }
      if (collective.kind == CollectiveKind::kAllReduce) {
        AllReduceInPlace(transfers, Flat(data), collective.reduction);
      } else {
        Broadcast(transfers, IndexOf(members, collective.arguments[0]), data);
      }
      if (outputs.size() > 1) Unpack(static_cast<const char*>(data.data_ptr()), outputs);
      return;
    }
    case CollectiveKind::kAllGather:
      ExchangeParts(transfers, outputs[0], [&](int64_t) { return inputs[0]; });
      return;
    case CollectiveKind::kAllToAll:
      ExchangeParts(transfers, outputs[0], [&](int64_t member) { return inputs[0][member]; });
      return;
    case CollectiveKind::kReduceScatter:
      ReduceScatter(transfers, inputs[0], outputs[0], collective.reduction);
      return;
    case CollectiveKind::kPermute:
      Permute(transfers, collective, members, rank(), inputs[0], outputs[0]);
      return;
    case CollectiveKind::kTransfer:
      break;
  }
}

void Communicator::RunTransfer(const Collective& collective, std::string_view text,
                               const at::Tensor& input, const at::Tensor& output) {
  const std::vector<int64_t> ends{collective.arguments[0], collective.arguments[1]};
  // One channel for each tag of each group. If two channels collide, the header tells the messages
  // apart.
  const int64_t channel = collective.arguments[2] + collective.arguments[3];
  const int tag = kMessages + 2 * static_cast<int>(channel & ((1 << 29) - 1));
  std::string header(text.substr(0, kHeaderBytes));
  header.resize(kHeaderBytes);
  Transfers transfers(*bulk_, *mesh_, watcher_, ends);
  if (rank() == ends[0]) {
    auto send = [&](const at::Tensor& data, int as) {
      sent_.Add(data, transfers.StartSend(data, 1, as), static_cast<int>(ends[1]));
    };
    send(Bytes(header.data(), kHeaderBytes).clone(), tag);
    if (input.nbytes() > 0) send(Bytes(input).clone(), tag + 1);
    CopyBytes(output.data_ptr(), input);
    return;
  }
  std::string theirs(kHeaderBytes, '\0');
  transfers.WaitForMessage(transfers.Receive(Bytes(theirs.data(), kHeaderBytes), 0, tag), 0);
  if (theirs != header) {
    throw ReplicaError("the replicas run different transfers: rank " + std::to_string(rank()) +
                       " (this one) receives " + header.c_str() + ", rank " +
                       std::to_string(ends[0]) + " sends " + theirs.c_str());
  }
  transfers.Wait(transfers.Receive(output, 0, tag + 1), 0);
}

void Communicator::Abort(const std::string& reason) {
  mesh_->Abort(reason);
  watcher_.Abort();
  sent_.Abort(reason);
}

namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Communicator> communicator;
};

Current& GetCurrent() {
  static auto& current = *new Current;
  return current;
}

}  // namespace

std::shared_ptr<Communicator> GetCommunicator() {
  Current& current = GetCurrent();
  std::lock_guard lock(current.mutex);
  TORCH_CHECK(current.communicator, "the replicas are not connected");
  return current.communicator;
}

bool HasCommunicator() {
  Current& current = GetCurrent();
  std::lock_guard lock(current.mutex);
  return current.communicator != nullptr;
}

void SetCommunicator(std::shared_ptr<Communicator> communicator) {
  Current& current = GetCurrent();
  std::lock_guard lock(current.mutex);
  current.communicator.swap(communicator);  // the old one is destroyed after the lock is released
}

void CloseCommunicatorInChild() {
  if (auto& communicator = GetCurrent().communicator) communicator->CloseInChild();
}

}  // namespace torch_xla::distributed
