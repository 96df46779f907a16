// Runs collectives among the replicas, on the host's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/collective.h"
#include "distributed/peer_mesh.h"
#include "distributed/sent_messages.h"
#include "distributed/transfer_watcher.h"

namespace torch_xla::distributed {

class Communicator {
 public:
  /// `bulk` (Gloo) has the ranks of `mesh`.
  Communicator(std::unique_ptr<PeerMesh> mesh, c10::intrusive_ptr<c10d::Backend> bulk);

  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }
  std::vector<int> Ended() const { return mesh_->Ended(); }
  void CloseInChild() { mesh_->CloseInChild(); }

  /// One collective over CPU tensors; blocks. `text` describes it, and is the same on all
  /// replicas that take part. Contiguous tensors; an output may be its input. Once a call has
  /// failed, all later ones fail with the same error. The sender of a transfer does not wait for
  /// its receiver.
  void Run(const Collective& collective, std::string_view text,
           const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);

  /// Waits until the others have what was sent to them. Throws where they will not take it.
  void Finish() { sent_.Finish(); }

  /// Gives up, from any thread: the others are told why, and Run fails, also one under way.
  void Abort(const std::string& reason);

 private:
  void RunLocked(const Collective& collective, std::string_view text,
                 const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);

  void RunTransfer(const Collective& collective, std::string_view text, const at::Tensor& input,
                   const at::Tensor& output);

  std::mutex mutex_;
  std::unique_ptr<PeerMesh> mesh_;
  TransferWatcher watcher_;
  c10::intrusive_ptr<c10d::Backend> bulk_;
  SentMessages sent_;
  at::Tensor scratch_;
  std::string failure_;
};

/// The communicator of this process, once there is one; throws where there is none. Who runs on it
/// holds it: SetCommunicator may come from another thread at any time.
std::shared_ptr<Communicator> GetCommunicator();
bool HasCommunicator();
void SetCommunicator(std::shared_ptr<Communicator> communicator);
/// In a forked child: see PeerMesh::CloseInChild. Takes no lock, which a thread of the parent may
/// have held.
void CloseCommunicatorInChild();

}  // namespace torch_xla::distributed
