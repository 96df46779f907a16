// Runs collectives among the replicas in host memory.
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
  /// `bulk` (Gloo) must have the same ranks as `mesh`.
  Communicator(std::unique_ptr<PeerMesh> mesh, c10::intrusive_ptr<c10d::Backend> bulk);

  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }
  std::vector<int> Ended() const { return mesh_->Ended(); }
  void CloseInChild() { mesh_->CloseInChild(); }

  /// Runs one collective over CPU tensors, and blocks. `text` describes the collective and must be
  /// equal on all participating replicas. Tensors must be contiguous; an output may be its input.
  /// Once a call has failed, all later calls fail with the same error. The sender of a transfer
  /// does not wait for the receiver.
  void Run(const Collective& collective, std::string_view text,
           const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);

  /// Waits until the other replicas have received all messages. Throws if they will not receive
  /// them.
  void Finish() { sent_.Finish(); }

  /// Gives up; may be called from any thread. The other replicas are told the reason, and Run
  /// fails, even if it is in progress.
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

/// The communicator of this process; throws if there is none. Callers hold it while they use it,
/// since another thread may call SetCommunicator at any time.
std::shared_ptr<Communicator> GetCommunicator();
bool HasCommunicator();
void SetCommunicator(std::shared_ptr<Communicator> communicator);
/// For a forked child: see PeerMesh::CloseInChild. Takes no lock, since a thread of the parent may
/// have held it.
void CloseCommunicatorInChild();

}  // namespace torch_xla::distributed
