// What replicas tell each other before a collective, and what a collective does with shapes.
#include "distributed/collective.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "distributed/communicator.h"
#include "distributed/peer_mesh.h"

namespace torch_xla::distributed {
namespace {

using namespace std::chrono_literals;

/// Meshes of `count` ranks in this process.
std::vector<std::unique_ptr<PeerMesh>> MakeMeshes(int count, std::chrono::milliseconds timeout) {
  std::vector<std::vector<int>> sockets(count, std::vector<int>(count, -1));
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < a; ++b) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  }
  std::vector<std::unique_ptr<PeerMesh>> meshes;
  for (int rank = 0; rank < count; ++rank) {
    meshes.push_back(std::make_unique<PeerMesh>(rank, std::move(sockets[rank]), timeout));
  }
  return meshes;
}

struct Outcome {
  std::string payloads, error;
};

Outcome Exchange(PeerMesh& mesh, const std::vector<int64_t>& members, const std::string& what,
                 const std::string& payload) {
  try {
    std::vector<char> payloads = mesh.Exchange(members, what, payload);
    return {{payloads.begin(), payloads.end()}, {}};
  } catch (const ReplicaError& error) {
    mesh.Abort(error.what());
    return {{}, error.what()};
  }
}

/// What `run(rank)` returns, of all `ranks` at once; that of rank r is at r.
std::vector<Outcome> AtOnce(const std::vector<int64_t>& ranks,
                            const std::function<Outcome(int64_t)>& run) {
  std::vector<Outcome> outcomes(*std::max_element(ranks.begin(), ranks.end()) + 1);
  std::vector<std::thread> threads;
  for (int64_t rank : ranks) {
    threads.emplace_back([&, rank] { outcomes[rank] = run(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Ranks from 0 on but for `without`.
std::vector<int64_t> Ranks(int64_t count, const std::set<int64_t>& without = {}) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < count; ++rank) {
    if (!without.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(PeerMesh, ExchangesPayloadsInTheOrderOfTheMembers) {
  auto meshes = MakeMeshes(3, 10s);
  // More than a socket holds.
  const size_t size = 3 << 20;
  const std::vector<Outcome> outcomes = AtOnce(Ranks(3), [&](int64_t rank) {
    return Exchange(*meshes[rank], {2, 0, 1}, "call",
                    std::string(size, static_cast<char>('a' + rank)));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.payloads,
              std::string(size, 'c') + std::string(size, 'a') + std::string(size, 'b'));
  }
}

TEST(PeerMesh, ExchangesAmongAnyNumber) {
  // At 26 there is one between a root and those that speak for nobody.
  const int most = 26;
  auto meshes = MakeMeshes(most, 60s);
  std::vector<int64_t> members;
  std::string expected;
  // Backwards, one more each time: then a rank has another place, and hears from others.
  for (int64_t rank = most - 1; rank >= 0; --rank) {
    members.push_back(rank);
    expected += std::string(2, static_cast<char>('a' + rank));
    const std::vector<Outcome> outcomes = AtOnce(members, [&](int64_t member) {
      return Exchange(*meshes[member], members, "call",
                      std::string(2, static_cast<char>('a' + member)));
    });
    for (int64_t member : members) {
      EXPECT_EQ(outcomes[member].error, "");
      EXPECT_EQ(outcomes[member].payloads, expected);
    }
  }
}

TEST(PeerMesh, OneMemberNeedsNobody) {
  auto meshes = MakeMeshes(2, 10s);
  EXPECT_EQ(Exchange(*meshes[1], {1}, "call", "own").payloads, "own");
  EXPECT_EQ(Exchange(*meshes[1], {1}, "call", "").payloads, "");
}

TEST(PeerMesh, ShowsBothWhereTheyDiffer) {
  for (const std::string payload : {"", "abc", "a longer one"}) {
    auto meshes = MakeMeshes(2, 10s);
    Outcome first, second;
    std::thread other([&] { second = Exchange(*meshes[1], {0, 1}, "another thing", payload); });
    first = Exchange(*meshes[0], {0, 1}, "this", "abc");
    other.join();
    for (const Outcome& outcome : {first, second}) {
      EXPECT_TRUE(Contains(outcome.error, "this")) << outcome.error;
      EXPECT_TRUE(Contains(outcome.error, "another thing")) << outcome.error;
    }
  }
}

// Also to those that neither hear from it nor tell it anything.
TEST(PeerMesh, ShowsAllWhoDiffers) {
  auto meshes = MakeMeshes(7, 600s);
  const std::vector<Outcome> outcomes = AtOnce(Ranks(7), [&](int64_t rank) {
    return Exchange(*meshes[rank], Ranks(7), rank == 4 ? "another thing" : "this", "x");
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(Contains(outcome.error, "rank 4")) << outcome.error;
    EXPECT_TRUE(Contains(outcome.error, "runs this")) << outcome.error;
    EXPECT_TRUE(Contains(outcome.error, "runs another thing")) << outcome.error;
  }
}

// Rank 5 tells, and waits for, others than rank 0, which waits for it.
TEST(PeerMesh, ShowsGroupsThatDiffer) {
  auto meshes = MakeMeshes(8, 600s);
  const std::vector<Outcome> outcomes = AtOnce(Ranks(8), [&](int64_t rank) {
    return rank == 0 ? Exchange(*meshes[0], {0, 5}, "the pair", "x")
                     : Exchange(*meshes[rank], Ranks(8), "them all", "x");
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(Contains(outcome.error, "runs the pair")) << outcome.error;
    EXPECT_TRUE(Contains(outcome.error, "runs them all")) << outcome.error;
  }
}

TEST(PeerMesh, TellsPayloadsOfOtherSizesApart) {
  auto meshes = MakeMeshes(2, 10s);
  Outcome first, second;
  std::thread other([&] { second = Exchange(*meshes[1], {0, 1}, "call", "12"); });
  first = Exchange(*meshes[0], {0, 1}, "call", "1234");
  other.join();
  EXPECT_NE(first.error, "");
  EXPECT_NE(second.error, "");
}

TEST(PeerMesh, NamesWhoHasEnded) {
  auto meshes = MakeMeshes(3, 10s);
  EXPECT_TRUE(meshes[0]->Ended().empty());
  meshes[2].reset();
  EXPECT_EQ(meshes[0]->Ended(), std::vector<int>{2});
  Outcome outcome = Exchange(*meshes[0], {0, 2}, "call", "x");
  EXPECT_TRUE(Contains(outcome.error, "rank 2 has ended")) << outcome.error;
}

TEST(PeerMesh, NamesWhoDoesNotCome) {
  auto meshes = MakeMeshes(3, 50ms);
  Outcome outcome = Exchange(*meshes[1], {0, 1, 2}, "call", "x");
  EXPECT_TRUE(Contains(outcome.error, "ranks 0 and 2 did not come within 0.05 s")) << outcome.error;
}

// Among so many most wait for one that waits itself.
TEST(PeerMesh, NamesWhoDoesNotComeAmongMany) {
  auto meshes = MakeMeshes(11, 800ms);
  const std::vector<int64_t> here = Ranks(11, {3, 8});
  const std::vector<Outcome> outcomes =
      AtOnce(here, [&](int64_t rank) { return Exchange(*meshes[rank], Ranks(11), "call", "x"); });
  for (int64_t rank : here) {
    EXPECT_TRUE(Contains(outcomes[rank].error, "ranks 3 and 8 did not come within 0.8 s"))
        << outcomes[rank].error;
  }
}

TEST(PeerMesh, WhoIsLateFindsAllWell) {
  auto meshes = MakeMeshes(5, 4s);
  for (const std::string what : {"call", "another"}) {
    const std::vector<Outcome> outcomes = AtOnce(Ranks(5), [&](int64_t rank) {
      // By then the others have told that they are here.
      if (rank == 2 && what == "call") std::this_thread::sleep_for(1200ms);
      return Exchange(*meshes[rank], Ranks(5), what, std::string(2, static_cast<char>('a' + rank)));
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.payloads, "aabbccddee");
    }
  }
}

TEST(PeerMesh, NamesWhoHasEndedAmongMany) {
  auto meshes = MakeMeshes(10, 600s);
  meshes[6].reset();
  const std::vector<int64_t> here = Ranks(10, {6});
  const std::vector<Outcome> outcomes =
      AtOnce(here, [&](int64_t rank) { return Exchange(*meshes[rank], Ranks(10), "call", "x"); });
  for (int64_t rank : here) {
    EXPECT_TRUE(Contains(outcomes[rank].error, "rank 6 has ended")) << outcomes[rank].error;
  }
}

TEST(PeerMesh, AbortEndsAnExchangeThatIsUnderWay) {
  auto meshes = MakeMeshes(3, 600s);
  Outcome first, second;
  std::thread waiting([&] { first = Exchange(*meshes[0], {0, 1, 2}, "call", "x"); });
  std::thread other([&] { second = Exchange(*meshes[1], {0, 1, 2}, "call", "x"); });
  meshes[0]->Abort("enough");
  waiting.join();
  other.join();
  EXPECT_TRUE(Contains(first.error, "enough")) << first.error;
  EXPECT_TRUE(Contains(second.error, "rank 0 gave up: enough")) << second.error;
  EXPECT_TRUE(Contains(Exchange(*meshes[0], {0, 2}, "later", "").error, "enough"));
}

// Its message has come, and rank 2 never does: only the abort tells.
TEST(PeerMesh, AnAbortAfterTheMessageEndsTheOthers) {
  auto meshes = MakeMeshes(3, 600s);
  Outcome first, second;
  std::thread waiting([&] { first = Exchange(*meshes[0], {0, 1, 2}, "call", "x"); });
  std::thread other([&] { second = Exchange(*meshes[1], {0, 1, 2}, "call", "x"); });
  std::this_thread::sleep_for(50ms);
  meshes[0]->Abort("enough");
  waiting.join();
  other.join();
  EXPECT_TRUE(Contains(second.error, "rank 0 gave up: enough")) << second.error;
}

// Its next message, or its end, comes before what another has to say to this collective.
TEST(PeerMesh, WhoIsAheadIsNotTakenForOneThatGaveUp) {
  const struct {
    uint32_t kind = 1, text_size = 4;
    uint64_t payload_size = 1, number = 1;
    char rest[5] = {'c', 'a', 'l', 'l', 'x'};
  } message;
  for (const bool ends : {false, true}) {
    int ahead[2], late[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ahead), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, late), 0);
    PeerMesh mesh(0, {-1, ahead[0], late[0]}, 600s);
    const size_t size = offsetof(decltype(message), rest) + sizeof message.rest;
    for (int i = 0; i < (ends ? 1 : 2); ++i) ASSERT_EQ(write(ahead[1], &message, size), size);
    if (ends) shutdown(ahead[1], SHUT_WR);
    Outcome outcome;
    std::thread running([&] { outcome = Exchange(mesh, {0, 1, 2}, "call", "x"); });
    std::this_thread::sleep_for(20ms);
    ASSERT_EQ(write(late[1], &message, size), size);
    running.join();
    EXPECT_EQ(outcome.error, "");
    close(ahead[1]);
    close(late[1]);
  }
}

TEST(PeerMesh, AnAbortIsNotTakenForTheRestOfAMessage) {
  auto meshes = MakeMeshes(2, 600s);
  // More than the socket holds: the other side has not taken it all.
  const std::string large(16 << 20, 'a');
  Outcome outcome;
  std::thread sending([&] { outcome = Exchange(*meshes[0], {0, 1}, "call", large); });
  std::this_thread::sleep_for(50ms);
  meshes[0]->Abort("enough");
  sending.join();
  // As long as what the other expects.
  Outcome other = Exchange(*meshes[1], {0, 1}, "call", large);
  EXPECT_TRUE(Contains(other.error, "rank 0")) << other.error;
  EXPECT_EQ(other.payloads, "");
}

TEST(PeerMesh, WhoGaveUpBeforeACallIsNotSentToForEver) {
  auto meshes = MakeMeshes(2, 600s);
  meshes[0]->Abort("enough");
  Outcome outcome = Exchange(*meshes[1], {0, 1}, "call", std::string(16 << 20, 'a'));
  EXPECT_TRUE(Contains(outcome.error, "enough")) << outcome.error;
}

// Who runs a collective keeps the communicator, whatever becomes of the process's own.
TEST(Communicator, MayBeDroppedWhileItRuns) {
  auto meshes = MakeMeshes(2, 600s);
  SetCommunicator(std::make_shared<Communicator>(std::move(meshes[0]), nullptr));
  std::weak_ptr<Communicator> watched = GetCommunicator();
  std::string error;
  std::thread running([&] {
    auto held = GetCommunicator();
    at::Tensor data = at::ones({4});
    try {
      held->Run({CollectiveKind::kAllReduce, Reduction::kSum, {}, {}}, "all_reduce", {data},
                {data});
    } catch (const ReplicaError& failure) {
      error = failure.what();
    }
  });
  while (watched.use_count() < 2) std::this_thread::yield();
  auto ended = GetCommunicator();
  SetCommunicator(nullptr);
  EXPECT_FALSE(HasCommunicator());
  EXPECT_ANY_THROW(GetCommunicator());
  ended->Abort("the end");
  ended.reset();
  running.join();
  EXPECT_TRUE(Contains(error, "the end")) << error;
  EXPECT_TRUE(watched.expired());
}

TEST(PeerMesh, PassesOnWhyOneGaveUp) {
  auto meshes = MakeMeshes(2, 10s);
  meshes[0]->Abort("the reason");
  meshes[0].reset();
  Outcome outcome = Exchange(*meshes[1], {0, 1}, "call", "x");
  EXPECT_TRUE(Contains(outcome.error, "rank 0 gave up: the reason")) << outcome.error;
}

TEST(Collective, EncodesAndDecodes) {
  Collective collective{CollectiveKind::kAllToAll, Reduction::kMax, {{0, 2}, {3}, {}}, {1, 5, 2}};
  Collective decoded = Decode(Encode(collective));
  EXPECT_EQ(decoded.kind, collective.kind);
  EXPECT_EQ(decoded.reduction, collective.reduction);
  EXPECT_EQ(decoded.groups, collective.groups);
  EXPECT_EQ(decoded.arguments, collective.arguments);
}

TEST(Collective, FindsTheGroup) {
  Collective collective{CollectiveKind::kAllReduce};
  EXPECT_EQ(collective.GroupOf(1, 3), (std::vector<int64_t>{0, 1, 2}));
  collective.groups = {{0, 2}, {3, 1}};
  EXPECT_EQ(collective.GroupOf(1, 4), (std::vector<int64_t>{3, 1}));
  EXPECT_THROW(collective.GroupOf(4, 5), c10::ValueError);
}

TEST(Collective, GivesShapes) {
  auto dims = [](CollectiveKind kind, std::vector<int64_t> arguments, std::vector<int64_t> x) {
    return ResultDims({kind, Reduction::kSum, {}, std::move(arguments)}, x);
  };
  using Dims = std::vector<int64_t>;
  EXPECT_EQ(dims(CollectiveKind::kAllReduce, {}, {2, 3}), (Dims{2, 3}));
  EXPECT_EQ(dims(CollectiveKind::kAllGather, {1, 4}, {2, 3}), (Dims{2, 12}));
  EXPECT_EQ(dims(CollectiveKind::kReduceScatter, {0, 4}, {8, 3}), (Dims{2, 3}));
  EXPECT_EQ(dims(CollectiveKind::kAllToAll, {0, 1, 4}, {8, 3}), (Dims{2, 12}));
  EXPECT_EQ(dims(CollectiveKind::kAllToAll, {0, 0, 4}, {8, 3}), (Dims{8, 3}));
  EXPECT_THROW(dims(CollectiveKind::kAllGather, {2, 4}, {2, 3}), c10::IndexError);
  EXPECT_THROW(dims(CollectiveKind::kReduceScatter, {1, 4}, {8, 3}), c10::ValueError);
}

TEST(Collective, SaysWhatItIs) {
  ir::ShapeRef shape = ir::GetShape(c10::ScalarType::Float, {2, 3});
  EXPECT_EQ(Describe({CollectiveKind::kAllReduce}, {shape}),
            "all_reduce(sum, f32[2,3], groups=all)");
  EXPECT_EQ(Describe({CollectiveKind::kAllGather, Reduction::kSum, {{0, 1}, {2}}, {1, 2}}, {shape}),
            "all_gather(f32[2,3], arguments=[1,2], groups=[[0,1],[2]])");
  // A long list is cut, and told apart all the same.
  std::vector<ir::ShapeRef> many(300, shape);
  const std::string text = Describe({CollectiveKind::kAllReduce}, many);
  many[299] = ir::GetShape(c10::ScalarType::Float, {3, 2});
  EXPECT_LT(text.size(), 600u);
  EXPECT_NE(text, Describe({CollectiveKind::kAllReduce}, many));
}

TEST(Collective, RefusesReductions) {
  EXPECT_NO_THROW(CheckReduction(Reduction::kAnd, c10::ScalarType::Bool));
  EXPECT_THROW(CheckReduction(Reduction::kOr, c10::ScalarType::Half), c10::TypeError);
  EXPECT_THROW(CheckReduction(Reduction::kMin, c10::ScalarType::ComplexFloat), c10::TypeError);
  EXPECT_THROW(CheckReduction(Reduction::kSum, c10::ScalarType::Float8_e5m2), c10::TypeError);
  EXPECT_THROW(ReductionNamed("mean"), c10::ValueError);
}

}  // namespace
}  // namespace torch_xla::distributed
